"""Batches of training data.

Their order is a function of (seed, epoch), and a resumed run continues with the next one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Generic, TypeVar

import pytorch_lightning as pl
import torch
from torch import Tensor

from ..controllers.training_options import TrainingOptions

P = TypeVar("P")
B = TypeVar("B")
MIXED_BLOCKS = 8  # blocks whose rows are shuffled together


class ResumableLoader(Generic[B]):
    """Shuffled batches of row indices, which ``make_batch(epoch, rows)`` converts to tensors.

    Lightning stores ``state_dict`` in its checkpoints and restores it before it draws the first batch, so a resumed run
    continues with the next batch. Randomness in ``make_batch`` must depend only on (seed, epoch, rows).

    Args:
        rows: number of rows.
        batch_size: number of rows in a batch.
        seed: seed of the order.
        make_batch: makes the batch of an epoch and row indices.
        shuffle: whether the order is random.
        blocks: sizes of the blocks in which rows are stored, by epoch. Blocks come in random order, and rows are
            shuffled within a few blocks at a time, so that only these need to be in memory. By default one block.
    """

    def __init__(
        self,
        rows: int,
        batch_size: int,
        seed: int,
        make_batch: Callable[[int, Tensor], B],
        shuffle: bool = True,
        blocks: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self.rows, self.batch_size, self.seed, self.shuffle = rows, batch_size, seed, shuffle
        self.make_batch, self.blocks = make_batch, blocks
        self.epoch, self.batch = 0, 0

    def __len__(self) -> int:
        return math.ceil(self.rows / self.batch_size)

    def __iter__(self) -> Iterator[B]:
        # The epoch advances here and not after the loop, because Lightning does not draw past the last batch.
        if self.batch >= len(self):
            self.epoch, self.batch = self.epoch + 1, 0
        for number, rows in enumerate(self._batches()):
            if number < self.batch:
                continue
            self.batch += 1
            yield self.make_batch(self.epoch, rows)

    def _batches(self) -> Iterator[Tensor]:
        """Yield the epoch's rows, ``batch_size`` at a time."""
        waiting = torch.empty(0, dtype=torch.long)
        for rows in self._order():
            waiting = torch.cat([waiting, rows])
            *full, waiting = torch.split(waiting, self.batch_size)
            yield from full
        if len(waiting):
            yield waiting

    def _order(self) -> Iterator[Tensor]:
        """Yield the epoch's rows, a few blocks at a time."""
        blocks = [self.rows] if self.blocks is None else list(self.blocks(self.epoch))
        ranges = [(end - size, end) for size, end in zip(blocks, accumulate(blocks), strict=True)]
        if not self.shuffle:
            yield from (torch.arange(*block) for block in ranges)
            return
        generator = torch.Generator().manual_seed(((self.seed << 20) + self.epoch) % 2**63)
        order = torch.randperm(len(blocks), generator=generator).tolist() if len(blocks) > 1 else [0]
        for start in range(0, len(order), MIXED_BLOCKS):
            rows = torch.cat([torch.arange(*ranges[block]) for block in order[start : start + MIXED_BLOCKS]])
            yield rows[torch.randperm(len(rows), generator=generator)]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]


class ResumableData(pl.LightningDataModule, ABC, Generic[P, B]):
    """Base class: batches of type B from examples of type P.

    Args:
        settings: settings of the training.
        parts: training examples; epochs use the parts in turn.
        validation: validation examples.

    Attributes:
        train_loader: training batches.
    """

    def __init__(self, settings: TrainingOptions, parts: Sequence[P], validation: P) -> None:
        super().__init__()
        self.settings, self.parts, self.validation = settings, parts, validation
        self.train_loader = self._loader(parts, shuffle=True)

    @abstractmethod
    def sizes(self, examples: P) -> list[int]:
        """Return the number of examples in each block of storage."""

    @abstractmethod
    def batch(self, examples: P, rows: Tensor, epoch: int | None) -> B:
        """Return this process's part of a batch.

        Args:
            examples: the examples.
            rows: (M,) indices of the examples of the whole batch, see :meth:`share`.
            epoch: number of the epoch, from 0; None in validation.
        """

    @property
    def training(self) -> P:
        """The examples of the first epoch."""
        return self.parts[0]

    def share(self, rows: Tensor) -> tuple[Tensor, int, int]:
        """Return this process's rows of a batch, the index of the first one, and the number of all ``rows``."""
        rank, world_size = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        shares = rows.tensor_split(world_size)
        return shares[rank], sum(map(len, shares[:rank])), len(rows)

    def _loader(self, parts: Sequence[P], *, shuffle: bool) -> ResumableLoader[B]:
        rows, settings = sum(self.sizes(parts[0])), self.settings
        batch, sizes = partial(self._batch_of, parts, shuffle), partial(self._sizes_of, parts)
        return ResumableLoader(rows, settings.batch_size, settings.seed, batch, shuffle, sizes)

    def _batch_of(self, parts: Sequence[P], training: bool, epoch: int, rows: Tensor) -> B:
        return self.batch(parts[epoch % len(parts)], rows, epoch if training else None)

    def _sizes_of(self, parts: Sequence[P], epoch: int) -> list[int]:
        return self.sizes(parts[epoch % len(parts)])

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * len(self.train_loader)

    def train_dataloader(self) -> ResumableLoader[B]:
        return self.train_loader

    def val_dataloader(self) -> ResumableLoader[B]:
        return self._loader([self.validation], shuffle=False)

    # Lightning restores a loader's own state only in the middle of an epoch; without this a run resumed at an epoch's
    # end would start over with the first epoch's order.
    def state_dict(self) -> dict[str, int]:
        return self.train_loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.train_loader.load_state_dict(state_dict)
