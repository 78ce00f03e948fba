"""The data of the router's study: datasets of rewards, timed generations of every arm, and policies trained on them.

An arm's generation for a prompt does not depend on the policy. So each arm decodes each prompt once, all arms in turn,
and the figures of a policy are those of the generations of the arms it chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from numpy.typing import NDArray
from specpilot.common.errors import InputError
from specpilot.common.options import Count, NotNegative, OutputFileOptions, Place, Several, Share
from specpilot.compare.interval import ratio_interval
from specpilot.controllers.router import RouterPolicy
from specpilot.controllers.training_options import DraftLength, RouterTrainingOptions
from specpilot.data_gen.options import BUILTIN, PromptSourceOptions
from specpilot.data_gen.router_dataset import RouterDataset, Times, rewards
from specpilot.infer.core import Stats
from specpilot.infer.options import LoadingOptions, SamplingOptions, TargetOptions
from specpilot.train.callbacks import RefuseDivergence
from specpilot.train.fitting import ended_by_signals, quiet_lightning, without_launcher
from specpilot.train.router import RouterDataModule, RouterModule, Table, table_of

Choices = NDArray[np.int64]  # (N,) an arm for each prompt
AUTOREGRESSIVE, LEARNED = "autoregressive", "learned"
EPOCHS = 30
PAPER: dict[str, Any] = {"reward": "rouge", "alpha": 0.5, "cost": "time"}
LEAD = 0.02  # smallest relative lead of a domain's best arm over the second for the domain to count as different


def train_policy(data: RouterDataset, **settings: Any) -> RouterPolicy:
    """Return a policy trained on all arms of ``data``; ``settings`` are fields of :class:`RouterTrainingOptions`."""
    training = RouterTrainingOptions(data="in memory", device="cpu", **settings)
    return fit_policy(table_of(data, training), training)


def fit_policy(table: Table, settings: RouterTrainingOptions) -> RouterPolicy:
    """Return the policy after the last epoch over ``table``, for embeddings that are not scaled; writes no files.

    Raises:
        InputError: training diverges.
    """
    data = RouterDataModule(table, settings)
    module = RouterModule(settings, data)
    with quiet_lightning(), ended_by_signals(), without_launcher(nodes=1):
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, plugins=LightningEnvironment(), max_epochs=settings.epochs, logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, limit_val_batches=0,
            callbacks=[RefuseDivergence()],
        )  # fmt: skip
        trainer.fit(module, datamodule=data)
    policy = module.head
    policy.absorb(data.scale)
    return policy.eval().requires_grad_(False)


def serving(length: str) -> dict[str, Any]:
    """Return training settings of a router for serving with drafts of ``length``.

    If the length is not a number, the reward assumes the best length for each prompt.
    """
    fixed = int(length) if length.isdigit() else None
    return {
        "reward": "throughput", "length": fixed, "gradient": "exact", "baseline": "query", "standardize": True,
        "epochs": EPOCHS,
    }  # fmt: skip


def expected_throughput(data: RouterDataset, length: str) -> NDArray[np.float64]:
    """Return the throughput (N, A) by the cost model with drafts of ``length``, relative to the target alone."""
    return rewards(data, "throughput", length=int(length) if length.isdigit() else None)


def subset(data: RouterDataset, arms: Sequence[str]) -> RouterDataset:
    """Return the same prompts with only the given arms, in the given order."""
    by_name = {arm.name: index for index, arm in enumerate(data.arms)}
    where = [by_name[name] for name in arms]

    def take(values: list[Any]) -> list[Any]:
        return [values[i] for i in where]

    rows = [
        replace(row, outputs=take(row.outputs), rouge=take(row.rouge), overlap=take(row.overlap)) for row in data.rows
    ]
    times = Times(take(data.times.arms), data.times.verify)
    return RouterDataset(data.manifest, tuple(data.arms[i] for i in where), rows, times)


def within(data: RouterDataset, domains: Sequence[str]) -> RouterDataset:
    """Return the prompts of the given domains.

    Raises:
        InputError: no prompt has one of these domains.
    """
    rows = [row for row in data.rows if row.domain in domains]
    if not rows:
        raise InputError(f"domains: {', '.join(domains)}: no prompts of these domains; take more or other prompts")
    return replace(data, rows=rows)


def embeddings(data: RouterDataset) -> NDArray[np.float32]:
    """Return the embeddings (N, d) of the prompts."""
    return np.array([row.embedding for row in data.rows], dtype=np.float32)


def domains_of(data: RouterDataset) -> NDArray[np.str_]:
    """Return the domains (N,) of the prompts."""
    return np.array([row.domain for row in data.rows])


def accuracy(choices: Choices, expected: NDArray[np.float64], domains: NDArray[np.str_]) -> dict[str, Any]:
    """Return the share of prompts whose chosen arm is the best one on average in the prompt's domain.

    ``where_domains_differ`` counts only domains whose best arm leads the second by ``LEAD``, since the choice between
    equally good arms does not matter.

    Args:
        choices: (N,) index of the chosen arm of each prompt.
        expected: (N, A) expected throughput of each arm.
        domains: (N,) domain of each prompt.
    """
    right = np.zeros(len(choices), dtype=bool)
    differ = np.zeros(len(choices), dtype=bool)
    best = {}
    for domain in dict.fromkeys(domains.tolist()):
        in_domain = domains == domain
        mean = expected[in_domain].mean(0)
        second, first = np.sort(mean)[-2:]
        right[in_domain] = choices[in_domain] == mean.argmax()
        differ[in_domain] = first >= second * (1 + LEAD)
        best[domain] = {"arm": int(mean.argmax()), "lead": float(first / second - 1)}
    return {
        "all_domains": float(right.mean()),
        "where_domains_differ": float(right[differ].mean()) if differ.any() else None,
        "prompts_there": int(differ.sum()),
        "best_by_domain": best,
    }


def sampled(policy: NDArray[np.float64], seed: int = 0) -> Choices:
    """Return an arm (N,) that is drawn from each row of ``policy`` (N, A)."""
    points = np.random.default_rng(seed).random((len(policy), 1))
    return np.asarray((policy.cumsum(1) < points).sum(1).clip(max=policy.shape[1] - 1), dtype=np.int64)


def greedy(policy: NDArray[np.float64]) -> Choices:
    return np.asarray(policy.argmax(1), dtype=np.int64)


def rate_row(
    runs: Sequence[Stats], baseline: Sequence[Stats], where: Any = slice(None), name: str = "ratio"
) -> dict[str, float]:
    """Return the tokens per second, prefill included, and their ratio to those of ``baseline``.

    Args:
        runs, baseline: counters of the same prompts.
        where: index of the prompts that count. Default: all.
        name: key of the ratio. The keys ``low`` and ``high`` have its 95 % interval.
    """
    tokens, seconds, *baseline_totals = (x[where] for part in (runs, baseline) for x in _totals(part))
    rate = float(tokens.sum() / seconds.sum())
    return {"tokens_per_second": rate, **ratio_interval(tokens, seconds, *baseline_totals).named(name)}


def _totals(runs: Sequence[Stats]) -> tuple[Any, Any]:
    """Return the generated tokens and the seconds of each of ``runs``, (N,) each."""
    tokens = np.array([run.n_generated for run in runs], dtype=float)
    return tokens, np.array([run.seconds + run.prefill_seconds for run in runs])


@dataclass(frozen=True, kw_only=True)
class RouterBenchOptions(TargetOptions, PromptSourceOptions, SamplingOptions, LoadingOptions, OutputFileOptions):
    """Benchmark.

    Options of ``python -m experiments router``.

    Attributes:
        drafts: Draft models to choose between.
        pair: Two of the drafts, each specialised on one of pair_domains, for Table 1 and, with autoregressive, Tables 3
            and 4. Default: the shipped ones for math and for SQL and shell, or else the first two drafts.
        pair_domains: Domains of the pair. Default: math and sql of the built-in prompts, or else all.
        exits: Layers of the target for early-exit drafts (Table 6, and the larger drafts of Figure 2); none for an
            encoder-decoder.
        limit: Number of held-out prompts that are decoded and timed.
        train_limit: Number of training prompts.
        train_split: Split of the training prompts. Held-out prompts are excluded from it, so it may be the same split.
        repeats: Number of timed repetitions of routers and single drafts, of which the median is taken; the tables'
            other lengths and exits are timed once.
        work: Folder of the two datasets; they are kept and continued.
        length: Fixed draft length.
        learned: Variable draft length: a rule, or a controller for each draft in order.
        temperatures: Further temperatures of the routers (Tables 13, 14).
        lengths: Fixed lengths (Tables 11, 12).
        examples: Numbers of training prompts (Figure 3); all prompts are added last.
        seeds: Number of trainings for each number of training prompts.
        alphas: Weights of alignment (Figure 2).
    """

    split: str = "test"
    drafts: Annotated[tuple[str, ...], Several(2)] = (
        "tiny-draft", "tiny-draft-code-prose", "tiny-draft-math", "tiny-draft-sql-shell",
    )  # fmt: skip
    pair: tuple[str, ...] = ()
    pair_domains: tuple[str, ...] = ()
    exits: tuple[Count, ...] = (1, 2, 3)
    limit: Count = 120
    train_limit: Count = 1500
    train_split: str = "train"
    repeats: Count = 3
    work: Annotated[str, Place(folder=True)] = "runs/router-bench"
    length: DraftLength = 4
    learned: str | tuple[str, ...] = "cumulative-confidence:0.3"
    max_new_tokens: Count = 96
    temperatures: tuple[NotNegative, ...] = (0.5, 0.9)
    lengths: tuple[DraftLength, ...] = (5, 7, 10)
    examples: tuple[Count, ...] = (10, 30, 100, 300)
    seeds: Count = 3
    alphas: tuple[Share, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        shipped = ("tiny-draft-math", "tiny-draft-sql-shell")
        pair = self.pair or (shipped if set(shipped) <= set(self.drafts) else self.drafts[:2])
        if len(pair) != 2 or not set(pair) <= set(self.drafts):
            raise InputError(f"pair={list(pair)}: name two of the drafts: {', '.join(self.drafts)}")
        object.__setattr__(self, "pair", pair)
        if not self.pair_domains and self.prompts in BUILTIN:
            object.__setattr__(self, "pair_domains", ("math", "sql"))
        if len(self.pair_domains) not in (0, 2):
            raise InputError(f"pair_domains={list(self.pair_domains)}: name two domains")
        if isinstance(self.learned, tuple) and len(self.learned) != len(self.drafts):
            raise InputError(f"learned={list(self.learned)}: give one for all drafts, or one for each")

    @property
    def arms(self) -> tuple[str, ...]:
        """All arms of the dataset."""
        return (*self.drafts, *(f"exit:{layer}" for layer in self.exits), "autoregressive")


@dataclass(frozen=True)
class ArmTimings:
    """Timed generations: ``runs[arm, length]`` has those of N prompts; a length is a label such as "4" or "learned"."""

    runs: Mapping[tuple[str, str], Sequence[Stats]]

    def of(self, arm: str, length: str) -> Sequence[Stats]:
        return self.runs[arm, "" if arm == AUTOREGRESSIVE else length]

    def row(self, arms: Sequence[str], choices: Choices, length: str, where: Any = slice(None)) -> dict[str, float]:
        """Return the speed of chosen arms: tokens per second, milliseconds per token, and the speed-up over no drafts.

        Args:
            arms: the arms.
            choices: (N,) index of the chosen arm of each prompt.
            length: label of the length controller.
            where: index of the prompts that count. Default: all.
        """
        chosen = [self.of(arms[arm], length)[i] for i, arm in enumerate(choices.tolist())]
        target_choices = self.of(AUTOREGRESSIVE, "")[: len(choices)]
        row = rate_row(chosen, target_choices, where, "speedup")
        return row | {"ms_per_token": 1e3 / row["tokens_per_second"]}


@dataclass(frozen=True)
class Study:
    """Training and held-out prompts with every arm's rewards, and the arms' timings on the held-out prompts."""

    train: RouterDataset
    test: RouterDataset
    timings: ArmTimings

    def policy(self, arms: Sequence[str], domains: Sequence[str] | None = None, **settings: Any) -> NDArray[np.float64]:
        """Return π(·|x) (N, A) on the held-out prompts, for a policy trained on the given arms and domains."""
        data = subset(self.train, arms)
        return probabilities(train_policy(data if domains is None else within(data, domains), **settings), self.test)

    @property
    def domains(self) -> NDArray[np.str_]:
        """The domains (N,) of the held-out prompts."""
        return domains_of(self.test)

    def expected(self, arms: Sequence[str], length: str) -> NDArray[np.float64]:
        """Return :func:`expected_throughput` of the held-out prompts."""
        return expected_throughput(subset(self.test, arms), length)


def probabilities(policy: RouterPolicy, data: RouterDataset) -> NDArray[np.float64]:
    """Return π(·|x) (N, A) for a dataset's prompts."""
    with torch.inference_mode():
        logits = policy(torch.from_numpy(embeddings(data)))
        probabilities_of_arms: NDArray[np.float64] = logits.double().softmax(-1).numpy()
    return probabilities_of_arms
