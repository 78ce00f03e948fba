"""Tables of the router's benchmark, from measured runs and stored rewards. N held-out prompts, A arms.

A generation is what the chosen arm makes of the prompt, so a table of many policies needs each arm to decode each
prompt once only, all arms in turn: a policy's figure is that of the runs it would have chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...controllers.errors import InputError
from ...controllers.router import RouterPolicy
from ...data_gen.rewards import rewards
from ...data_gen.router_dataset import RouterDataset, Times
from ...infer.generation import Stats
from ..interval import interval

Choices = NDArray[np.int64]
Fit = Callable[..., RouterPolicy]  # (dataset, **settings of RouterTrainingOptions)

AUTOREGRESSIVE, LEARNED = "autoregressive", "learned"
EPOCHS = 10
PAPER: dict[str, Any] = {"reward": "rouge", "alpha": 0.5, "cost": "time"}
LEAD = 0.02  # domains differ where the best arm's mean throughput leads the second's by this share


def ours(length: str) -> dict[str, Any]:
    """Settings of training, to serve with drafts of this length; if it is not fixed, by each prompt's best."""
    fixed = int(length) if length.isdigit() else None
    return {"reward": "throughput", "length": fixed, "baseline": "query", "standardize": True, "epochs": EPOCHS}


def worth_of(data: RouterDataset, length: str) -> NDArray[np.float64]:
    """(N, A) throughput that the cost model expects with drafts of this length."""
    return rewards(data, "throughput", length=int(length) if length.isdigit() else None)


def subset(data: RouterDataset, names: Sequence[str]) -> RouterDataset:
    """The same prompts with these arms only, in this order."""
    by_name = {arm.name: place for place, arm in enumerate(data.arms)}
    where = [by_name[name] for name in names]

    def take(values: list[Any]) -> list[Any]:
        return [values[i] for i in where]

    rows = [
        replace(row, outputs=take(row.outputs), rouge=take(row.rouge), overlap=take(row.overlap)) for row in data.rows
    ]
    times = Times(take(data.times.arms), data.times.verify)
    return RouterDataset(data.manifest, tuple(data.arms[i] for i in where), rows, times)


def embeddings(data: RouterDataset) -> NDArray[np.float32]:
    return np.array([row.embedding for row in data.rows], dtype=np.float32)


def policy_of(policy: RouterPolicy, data: RouterDataset) -> NDArray[np.float64]:
    """π(·|x) (N, A) of a dataset's prompts."""
    import torch

    with torch.inference_mode():
        logits = policy(torch.from_numpy(embeddings(data)))
        found: NDArray[np.float64] = logits.double().softmax(-1).numpy()
    return found


def domains_of(data: RouterDataset) -> NDArray[np.str_]:
    return np.array([row.domain for row in data.rows])


def accuracy(choices: Choices, worth: NDArray[np.float64], domains: NDArray[np.str_]) -> dict[str, Any]:
    """Share of prompts for which the arm is the one that is best on average in their domain, (N, A) ``worth``.

    ``where_domains_differ`` counts only domains whose best arm leads the second by ``LEAD``: between arms as good as
    each other there is nothing to select.
    """
    right = np.zeros(len(choices), dtype=bool)
    differ = np.zeros(len(choices), dtype=bool)
    best = {}
    for domain in dict.fromkeys(domains.tolist()):
        here = domains == domain
        mean = worth[here].mean(0)
        second, first = np.sort(mean)[-2:]
        right[here] = choices[here] == mean.argmax()
        differ[here] = first >= second * (1 + LEAD)
        best[domain] = {"arm": int(mean.argmax()), "lead": float(first / second - 1)}
    return {
        "all_domains": float(right.mean()),
        "where_domains_differ": float(right[differ].mean()) if differ.any() else None,
        "prompts_there": int(differ.sum()),
        "best_by_domain": best,
    }


@dataclass(frozen=True)
class Grid:
    """Measured runs: ``runs[arm, length][i]`` is prompt i's, (prompts,) each; ``length`` is a label."""

    runs: Mapping[tuple[str, str], Sequence[Stats]]

    def totals(self, names: Sequence[str], choices: Choices, length: str) -> tuple[Any, Any]:
        """Tokens and seconds (N,) of prompts decoded with the chosen arms."""
        chosen = [self.of(names[arm], length)[i] for i, arm in enumerate(choices.tolist())]
        return (
            np.array([run.n_generated for run in chosen], dtype=float),
            np.array([run.seconds + run.prefill_seconds for run in chosen]),
        )

    def of(self, arm: str, length: str) -> Sequence[Stats]:
        return self.runs[arm, "" if arm == AUTOREGRESSIVE else length]

    def row(self, names: Sequence[str], choices: Choices, length: str, where: Any = slice(None)) -> dict[str, float]:
        """Tokens per second, ms a token, and the ratio to autoregressive with its 95 % interval over prompts."""
        tokens, seconds = (x[where] for x in self.totals(names, choices, length))
        alone = self.totals([AUTOREGRESSIVE], np.zeros(len(choices), dtype=np.int64), "")
        base_tokens, base_seconds = (x[where] for x in alone)
        ratio, low, high = interval(_ratio, tokens, seconds, base_tokens, base_seconds)
        rate = tokens.sum() / seconds.sum()
        return {"tokens_per_second": float(rate), "ms_per_token": float(1e3 / rate), "speedup": ratio, "low": low,
                "high": high}  # fmt: skip

    def against(
        self, names: Sequence[str], choices: Choices, others: Choices, length: str, where: Any = slice(None)
    ) -> tuple[float, float, float]:
        """Ratio of throughputs of two choices, with its 95 % interval over prompts."""
        ours = (x[where] for x in self.totals(names, choices, length))
        theirs = (x[where] for x in self.totals(names, others, length))
        return interval(_ratio, *ours, *theirs)


def _ratio(tokens: Any, seconds: Any, other_tokens: Any, other_seconds: Any) -> Any:
    return (tokens / seconds) / (other_tokens / other_seconds)


def sampled(policy: NDArray[np.float64], seed: int = 0) -> Choices:
    """An arm drawn from each row of (N, A)."""
    points = np.random.default_rng(seed).random((len(policy), 1))
    return np.asarray((policy.cumsum(1) < points).sum(1).clip(max=policy.shape[1] - 1), dtype=np.int64)


def greedy(policy: NDArray[np.float64]) -> Choices:
    return np.asarray(policy.argmax(1), dtype=np.int64)


def arm_set_table(
    fit: Fit, train: RouterDataset, test: RouterDataset, names: Sequence[str], grid: Grid, length: str,
    domains: Sequence[str], **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """One of the paper's tables: single arms, greedy and dynamic policy, in each domain and over those domains.

    Args:
        names: the arms; ``autoregressive`` is the unit, whether it is one of them or not.
        domains: where policies are trained and compared.
        settings: of training; by default :func:`ours`.
    """
    settings = settings or ours(length)
    theirs = subset(test, names)
    policy = policy_of(fit(within(subset(train, names), domains), **settings), theirs)
    rows: dict[str, Choices] = {name: np.full(len(theirs.rows), i) for i, name in enumerate(names)}
    rows |= {"policy, greedy": greedy(policy), "policy, dynamic": sampled(policy)}
    where = domains_of(theirs)
    present = [domain for domain in domains if (where == domain).any()]
    table: dict[str, Any] = {}
    for name, choices in rows.items():
        table[name] = {domain: grid.row(names, choices, length, where == domain) for domain in present}
        table[name]["average"] = float(np.mean([cell["speedup"] for cell in table[name].values()]))
    chosen = {domain: np.bincount(greedy(policy)[where == domain], minlength=len(names)).tolist() for domain in present}
    return {"arms": list(names), "settings": settings, "rows": table, "chosen": chosen}


def within(data: RouterDataset, domains: Sequence[str]) -> RouterDataset:
    """The prompts of these domains.

    Raises:
        InputError: there are none.
    """
    rows = [row for row in data.rows if row.domain in domains]
    if not rows:
        raise InputError(f"domains: {', '.join(domains)}: no prompt is of these; take more prompts or others")
    return replace(data, rows=rows)


def alpha_sweep(
    fit: Fit, train: RouterDataset, test: RouterDataset, names: Sequence[str], grid: Grid, length: str,
    alphas: Sequence[float],
) -> list[dict[str, Any]]:  # fmt: skip
    """Figure 2: what a dynamic policy chooses, and how fast it is, by the weight of alignment against measured cost."""
    known, theirs = subset(train, names), subset(test, names)
    rows = []
    for alpha in alphas:
        settings = {**ours(length), "reward": "rouge", "cost": "time", "alpha": alpha}
        policy = policy_of(fit(known, **settings), theirs)
        row = grid.row(names, sampled(policy), length)
        rows.append({"alpha": alpha, "shares": dict(zip(names, policy.mean(0).tolist(), strict=True)), **row})
    return rows


def example_curve(
    fit: Fit, train: RouterDataset, test: RouterDataset, names: Sequence[str], grid: Grid, length: str,
    examples: Sequence[int], seeds: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Figure 3: speed and selection accuracy by the number of training prompts; means over seeds.

    Few prompts are seen more often, up to a hundred times: what is asked is what they hold, not what a step does.
    """
    known, theirs = subset(train, names), subset(test, names)
    worth, where = worth_of(theirs, length), domains_of(theirs)
    rows = []
    for count in [n for n in examples if n < len(known.rows)] + [len(known.rows)]:
        settings = ours(length) | {"examples": count, "epochs": min(100, max(EPOCHS, 7200 // count))}
        found = [greedy(policy_of(fit(known, **settings, seed=seed), theirs)) for seed in range(seeds)]
        hits = [accuracy(choices, worth, where) for choices in found]
        speeds = [grid.row(names, choices, length)["speedup"] for choices in found]
        rows.append(
            {
                "examples": count,
                "speedup": float(np.mean(speeds)),
                "speedup_by_seed": speeds,
                "selection_accuracy": float(
                    np.mean([hit["where_domains_differ"] or hit["all_domains"] for hit in hits])
                ),
            }
        )
    return rows
