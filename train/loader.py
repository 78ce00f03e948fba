"""Batches in an order that is a pure function of (seed, epoch), with a position that a checkpoint can keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")


class ResumableLoader(Generic[Batch]):
    """Shuffled batches of row indices, turned into tensors by ``make_batch(epoch, rows)``.

    Lightning stores ``state_dict`` in its checkpoints and restores it before it draws the first batch, so a killed
    run goes on with the very next batch. ``make_batch`` must draw what randomness it needs from (seed, epoch, rows).
    """

    def __init__(
        self, rows: int, batch_size: int, seed: int, make_batch: Callable[[int, Tensor], Batch], shuffle: bool = True
    ) -> None:
        self.rows, self.batch_size, self.seed, self.shuffle = rows, batch_size, seed, shuffle
        self.make_batch = make_batch
        self.epoch, self.batch = 0, 0

    def __len__(self) -> int:
        return math.ceil(self.rows / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        # A sized loader is never asked for the batch after its last, so the epoch turns over here, not after the loop.
        if self.batch >= len(self):
            self.epoch, self.batch = self.epoch + 1, 0
        order = torch.arange(self.rows)
        if self.shuffle:
            generator = torch.Generator().manual_seed((self.seed << 20) + self.epoch)
            order = torch.randperm(self.rows, generator=generator)
        for start in range(self.batch * self.batch_size, self.rows, self.batch_size):
            self.batch += 1
            yield self.make_batch(self.epoch, order[start : start + self.batch_size])

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]
