"""Batches for the router: embeddings, every arm's reward, and uniform random numbers for sampling actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..common.errors import InputError
from ..data_gen.router_dataset import RouterDataset, check_finite, rewards
from .data_module import ResumableData
from .datasets import require_both, split
from .options import RouterTrainingOptions


class Batch(NamedTuple):
    """B queries: embeddings x (B, d), rewards (B, A), uniforms (B,) in [0, 1) for the actions."""

    x: Tensor
    rewards: Tensor
    uniforms: Tensor


@dataclass(frozen=True)
class Table:
    """Training data of a policy: embeddings x (N, d), rewards (N, A), and the queries' domains and ids."""

    x: Tensor
    rewards: Tensor
    domains: Sequence[str]
    ids: Sequence[str]

    def take(self, rows: Sequence[int]) -> Table:
        return Table(
            self.x[list(rows)], self.rewards[list(rows)],
            [self.domains[row] for row in rows], [self.ids[row] for row in rows],
        )  # fmt: skip


def table_of(data: RouterDataset, settings: RouterTrainingOptions) -> Table:
    """The dataset as a table with the rewards that ``settings`` define.

    Raises:
        InputError: a reward or an embedding is not finite.
    """
    found = rewards(data, settings.reward, alpha=settings.alpha, cost=settings.cost, length=settings.length)
    x = torch.tensor(np.array([row.embedding for row in data.rows], dtype=np.float32))
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).any(1).nonzero()[0])
        raise InputError(f"prompt {data.rows[row].prompt_id!r}: the embedding is not finite; generate the data again")
    ids = [row.prompt_id for row in data.rows]
    return Table(x, torch.tensor(found, dtype=torch.float32), [row.domain for row in data.rows], ids)


class RouterDataModule(ResumableData[Table, Batch]):
    """Training and validation queries of a table.

    Attributes:
        scale: (d,) divisor of the embeddings; 1 if they are not scaled.

    Raises:
        InputError: a reward is not finite, or training or validation would be empty.
    """

    def __init__(self, table: Table, settings: RouterTrainingOptions) -> None:
        arms = [str(arm) for arm in range(table.rewards.shape[1])]
        check_finite(table.rewards.double().numpy(), table.ids, arms)
        fraction = settings.validation_fraction
        training, validation = split(range(len(table.ids)), table.ids, fraction)
        training = training[: settings.examples]
        require_both(len(training), len(validation), fraction, "queries")
        super().__init__(settings, [table.take(training)], table.take(validation))
        x = self.training.x
        self.scale = torch.ones(x.shape[1])
        if settings.standardize and len(x) > 1:
            # Not centred: groups of prompts would lie on opposite sides of the mean, and a policy that learns an arm
            # for one group would drive its probability to 0 for another, where the gradient vanishes.
            self.scale = x.std(0).clamp(min=1e-6)

    def sizes(self, examples: Table) -> list[int]:
        return [len(examples.ids)]

    def batch(self, examples: Table, rows: Tensor, epoch: int | None) -> Batch:
        """Training is split over the processes; validation is not."""
        if epoch is None:
            return Batch(examples.x[rows] / self.scale, examples.rewards[rows], torch.zeros(len(rows)))
        # One number per query and epoch, independent of the batch.
        stream = np.random.default_rng([self.settings.seed, epoch]).random(len(examples.ids))
        mine, _, _ = self.share(rows)
        uniforms = torch.tensor(stream, dtype=torch.float32)[mine]
        return Batch(examples.x[mine] / self.scale, examples.rewards[mine], uniforms)
