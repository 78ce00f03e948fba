"""``specpilot train router``: trains a policy on a dataset of rewards and writes a run folder.

A step is REINFORCE on sampled actions, E[∇ log π(a|x)·r] (Huang et al. 2024, §2.4).

Every arm's reward is known offline, so the gradient can also be computed exactly: ∇ Σ_a π(a|x)·r(x, a).
Shapes: logits and rewards (B, A), uniforms (B,); N queries of a validation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..common.errors import InputError
from ..controllers.router import RouterPolicy
from ..controllers.training_options import RouterTrainingOptions
from ..data_gen.kinds import RouterRow
from ..data_gen.router_dataset import RouterDataset, rewards
from ..infer.random_source import draw
from .best_epoch import BestEpoch
from .data_module import ResumableData
from .datasets import joint_manifest, require_both, router_rows, split
from .fitting import Training, TrainingResult, fit, train_run
from .modules import finish_validation, optimizers, require_finite, seeded, total, training_loss


class Batch(NamedTuple):
    """B queries.

    Attributes:
        x: embeddings (B, d).
        rewards: rewards (B, A).
        uniforms: random numbers in [0, 1) for the actions (B,).
    """

    x: Tensor
    rewards: Tensor
    uniforms: Tensor


class Table(NamedTuple):
    """Training data of a policy.

    Attributes:
        x: embeddings (N, d).
        rewards: rewards (N, A).
        domains, ids: domains and ids of the queries (N,).
    """

    x: Tensor
    rewards: Tensor
    domains: NDArray[np.str_]
    ids: NDArray[np.str_]

    def take(self, rows: Sequence[int]) -> Table:
        """Return the queries ``rows``."""
        indices = list(rows)
        return Table(self.x[indices], self.rewards[indices], self.domains[indices], self.ids[indices])


def table_of(data: RouterDataset, settings: RouterTrainingOptions) -> Table:
    """Return the dataset as a table with the rewards that ``settings`` define.

    Raises:
        InputError: a reward or an embedding is not finite.
    """
    values = rewards(data, settings.reward, alpha=settings.alpha, cost=settings.cost, length=settings.length)
    x = torch.tensor(np.array([row.embedding for row in data.rows], dtype=np.float32))
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).any(1).nonzero()[0])
        raise InputError(f"prompt {data.rows[row].prompt_id!r}: the embedding is not finite; generate the data again")
    names = (np.array([vars(row)[name] for row in data.rows]) for name in ("domain", "prompt_id"))
    return Table(x, torch.tensor(values, dtype=torch.float32), *names)


class RouterDataModule(ResumableData[Table, Batch]):
    """Splits the prompts of a :class:`Table` into training and validation, and makes batches of them.

    Attributes:
        scale: (d,) divisors of the embeddings: the standard deviation of each dimension over the training prompts, or
            ones without ``standardize``.

    Raises:
        InputError: training or validation would be empty.
    """

    def __init__(self, table: Table, settings: RouterTrainingOptions) -> None:
        fraction = settings.validation_fraction
        training, validation = split(range(len(table.ids)), table.ids, fraction)
        training = training[: settings.examples]
        require_both(len(training), len(validation), fraction, "prompt")
        super().__init__(settings, [table.take(training)], table.take(validation))
        x = self.training.x
        self.scale = torch.ones(x.shape[1])
        if settings.standardize and len(x) > 1:
            # The embeddings are not centred. Groups of prompts would lie on opposite sides of the mean, and a policy
            # that learns an arm for one group would drive its probability to 0 for another, where the gradient
            # vanishes.
            self.scale = x.std(0).clamp(min=1e-6)

    def sizes(self, examples: Table) -> list[int]:
        return [len(examples.ids)]

    def batch(self, examples: Table, rows: Tensor, epoch: int | None) -> Batch:
        """Return a batch. Training is split over the processes, validation is not."""
        if epoch is None:
            return Batch(examples.x[rows] / self.scale, examples.rewards[rows], torch.zeros(len(rows)))
        # A number for each query and epoch, which does not depend on the batch.
        stream = np.random.default_rng([self.settings.seed, epoch]).random(len(examples.ids))
        share, _, _ = self.share(rows)
        uniforms = torch.tensor(stream, dtype=torch.float32)[share]
        return Batch(examples.x[share] / self.scale, examples.rewards[share], uniforms)


Array = NDArray[np.float64]
TIE = 1e-9
Total = Callable[[Tensor], Tensor]


def router_metrics(probabilities: Array, rewards: Array, domains: Sequence[str] | NDArray[np.str_]) -> dict[str, float]:
    """Return metrics of a validation from ``probabilities`` and ``rewards`` (N, A).

    * expected_reward: E_π[r], the mean reward of sampled choices.
    * greedy_reward: mean reward of the most probable arms.
    * regret, expected_regret: mean reward of the best arms minus greedy_reward, or minus expected_reward.
    * selection_accuracy: share of queries whose greedy choice is as good as their best arm.
    * domain_accuracy: share of queries whose greedy choice is the best arm on average in their domain.
    * entropy: mean entropy of π in nats.
    * best_single: mean reward of the arm that is best over all queries.
    * oracle: mean reward of each query's best arm.
    """
    chosen = probabilities.argmax(1)
    greedy_rewards, best = rewards[np.arange(len(rewards)), chosen], rewards.max(1)
    expected = (probabilities * rewards).sum(1)
    domain_names = np.array(domains)
    domain_best = {domain: rewards[domain_names == domain].mean(0).argmax() for domain in dict.fromkeys(domains)}
    entropy = -(probabilities * np.log(np.clip(probabilities, 1e-30, None))).sum(1)
    return {
        "expected_reward": float(expected.mean()),
        "greedy_reward": float(greedy_rewards.mean()),
        "regret": float((best - greedy_rewards).mean()),
        "expected_regret": float((best - expected).mean()),
        "selection_accuracy": float((greedy_rewards >= best - TIE).mean()),
        "domain_accuracy": float(np.mean([arm == domain_best[d] for arm, d in zip(chosen, domains, strict=True)])),
        "entropy": float(entropy.mean()),
        "best_single": float(rewards.mean(0).max()),
        "oracle": float(best.mean()),
    }


def same(value: Tensor) -> Tensor:
    """Return ``value``, the sum over a single process."""
    return value


def policy_loss(
    logits: Tensor, batch: Batch, gradient: str, baseline: str, entropy: float, total: Total = same
) -> Tensor:
    """Return the sum over queries of the policy loss, minus ``entropy`` times the policy's entropy, as a scalar.

    Args:
        logits: logits of the policy (B, A).
        batch: the queries.
        gradient: ``exact`` or ``sampled``.
        baseline: as for :func:`baseline_of`.
        entropy: weight of the entropy.
        total: sums a tensor over the processes over which the batch is split.
    """
    log_policy = logits.log_softmax(-1)
    policy = log_policy.exp()
    if gradient == "exact":
        weights, rewards, log_weights = policy, batch.rewards, policy  # ∇π = π·∇log π
    else:
        action = draw(policy.detach(), batch.uniforms).unsqueeze(-1)  # (B, 1)
        rewards, log_weights = batch.rewards.gather(-1, action), log_policy.gather(-1, action)
        weights = torch.ones_like(rewards)
    advantage = rewards - baseline_of(batch, (weights * rewards).sum(-1).detach(), baseline, total).unsqueeze(-1)
    gain = (log_weights * advantage.detach()).sum()
    return -gain - entropy * -(policy * log_policy).sum()


def baseline_of(batch: Batch, rewards: Tensor, baseline: str, total: Total = same) -> Tensor:
    """Return the baseline (B,) of each query's reward. It does not depend on the query's action and adds no bias.

    Args:
        batch: the queries.
        rewards: rewards of the sampled actions (B,).
        baseline: ``query`` for the mean over arms, ``batch`` for the mean over the other queries, else 0.
        total: as in :func:`policy_loss`.
    """
    if baseline == "query":
        return batch.rewards.mean(-1)
    if baseline == "batch":
        summed, count = total(torch.stack([rewards.sum(), rewards.new_tensor(len(rewards))])).unbind()
        if float(count) > 1:
            return (summed - rewards) / (count - 1)
    return torch.zeros_like(rewards)


class RouterModule(pl.LightningModule):
    """The policy in training. The best epoch has the lowest regret on held-out prompts."""

    criterion = "regret"
    validation: dict[str, float]

    def __init__(self, settings: RouterTrainingOptions, data: RouterDataModule) -> None:
        super().__init__()
        self.settings, self.steps = settings, data.total_steps
        hidden_size, arms = data.training.x.shape[1], data.training.rewards.shape[1]
        self.head = seeded(settings.seed, lambda: RouterPolicy(hidden_size, arms, settings.width))
        self.held_out, self.scale = data.validation, data.scale
        self.validation = {}
        self.probabilities: list[Tensor] = []  # π (B, A) of each validation batch

    def configure_optimizers(self) -> Any:
        constant = partial(torch.optim.lr_scheduler.ConstantLR, factor=1.0)
        return optimizers(self, self.steps, betas=(0.9, 0.99), eps=1e-8, schedule=constant)  # Table 9

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        settings, logits = self.settings, self.head(batch.x).float()
        require_finite(self, "predictions are", logits)
        options = settings.gradient, settings.baseline, settings.entropy, partial(total, self)
        return training_loss(self, policy_loss(logits, batch, *options), batch.x.new_tensor(len(batch.x)))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits = self.head(batch.x).float()
        require_finite(self, "predictions are", logits)
        self.probabilities.append(logits.cpu().double().softmax(-1))

    def on_validation_epoch_end(self) -> None:
        probabilities = torch.cat(self.probabilities).numpy()
        self.probabilities.clear()
        rewards = self.held_out.rewards.double().numpy()
        finish_validation(self, router_metrics(probabilities, rewards, self.held_out.domains))

    def add_findings(self, best: BestEpoch) -> BestEpoch:
        """Return ``best`` with the divisors of the embeddings, which export folds into the policy's first layer."""
        return replace(best, scale=self.scale.tolist())


def train_router(settings: RouterTrainingOptions, output: str | Path, *, resume: bool = False) -> TrainingResult:
    """Train a router.

    Arguments and errors are those of :func:`~.acceptance.train_acceptance`.

    Raises:
        InputError: also if a reward is not finite.
    """
    manifest = joint_manifest(settings.folders, RouterRow.kind)
    return train_run(output, settings, manifest, lambda: _load(settings), resume=resume)


def _load(settings: RouterTrainingOptions) -> Training:
    """Return the training on the datasets of ``settings``."""
    dataset = router_rows(settings.folders)
    data = RouterDataModule(table_of(dataset, settings), settings)
    module = RouterModule(settings, data)
    print(
        f"prompts: {len(data.training.ids)} for training, {len(data.validation.ids)} for validation; "
        f"steps: {data.total_steps}; arms: {len(dataset.arms)}"
    )
    return lambda run: replace(fit(run, module, data), scale=None)  # the scale is part of the policy
