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
from .loader import ResumableLoader
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


class RouterDataModule(ResumableData[Batch]):
    """Training and validation queries of a table.

    Attributes:
        scale: (d,) divisor of the embeddings; 1 if they are not scaled.

    Raises:
        InputError: a reward is not finite, or training or validation would be empty.
    """

    settings: RouterTrainingOptions

    def __init__(self, table: Table, settings: RouterTrainingOptions) -> None:
        super().__init__()
        arms = [str(arm) for arm in range(table.rewards.shape[1])]
        check_finite(table.rewards.double().numpy(), table.ids, arms)
        self.settings = settings
        fraction = settings.validation_fraction
        training, validation = split(range(len(table.ids)), table.ids, fraction)
        training = training[: settings.examples]
        require_both(len(training), len(validation), fraction, "queries")
        self.training, self.validation = table.take(training), table.take(validation)
        x = self.training.x
        self.scale = torch.ones(x.shape[1])
        if settings.standardize and len(x) > 1:
            # Not centred: groups of prompts would lie on opposite sides of the mean, and a policy that learns an arm
            # for one group would drive its probability to 0 for another, where the gradient vanishes.
            self.scale = x.std(0).clamp(min=1e-6)
        self.train_loader = ResumableLoader(len(training), settings.batch_size, settings.seed, self._train_batch)

    def _batch(self, table: Table, rows: Tensor, uniforms: Tensor) -> Batch:
        return Batch(table.x[rows] / self.scale, table.rewards[rows], uniforms)

    def _train_batch(self, epoch: int, rows: Tensor) -> Batch:
        # One number per query and epoch, independent of the batch.
        stream = np.random.default_rng([self.settings.seed, epoch]).random(len(self.training.ids))
        if self.trainer is not None:  # training is split over processes; validation is not
            rows = rows.tensor_split(self.trainer.world_size)[self.trainer.global_rank]
        return self._batch(self.training, rows, torch.tensor(stream, dtype=torch.float32)[rows])

    def _validation_batch(self, epoch: int, rows: Tensor) -> Batch:
        return self._batch(self.validation, rows, torch.zeros(len(rows)))

    def val_dataloader(self) -> ResumableLoader[Batch]:
        rows, size = len(self.validation.ids), self.settings.batch_size
        return ResumableLoader(rows, size, self.settings.seed, self._validation_batch, shuffle=False)
