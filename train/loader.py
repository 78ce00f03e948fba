"""A data loader whose order is a pure function of (seed, epoch) and whose position is part of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")
MIXED_BLOCKS = 8  # blocks whose rows are shuffled together


class ResumableLoader(Generic[Batch]):
    """Shuffled batches of row indices, turned into tensors by ``make_batch(epoch, rows)``.

    Lightning stores ``state_dict`` in its checkpoints and restores it before it draws the first batch, so a resumed run
    continues with the next batch. Randomness in ``make_batch`` must depend only on (seed, epoch, rows).

    Args:
        blocks: sizes of the blocks that the rows are stored in, by epoch. Blocks come in random order, and rows are
            shuffled within a few blocks at a time, so that only those need to be in memory. Default: one block.
    """

    def __init__(
        self,
        rows: int,
        batch_size: int,
        seed: int,
        make_batch: Callable[[int, Tensor], Batch],
        shuffle: bool = True,
        blocks: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self.rows, self.batch_size, self.seed, self.shuffle = rows, batch_size, seed, shuffle
        self.make_batch, self.blocks = make_batch, blocks
        self.epoch, self.batch = 0, 0

    def __len__(self) -> int:
        return math.ceil(self.rows / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        # The epoch advances here, not after the loop: Lightning does not draw past the last batch of a sized loader.
        if self.batch >= len(self):
            self.epoch, self.batch = self.epoch + 1, 0
        for number, rows in enumerate(self._batches()):
            if number < self.batch:
                continue
            self.batch += 1
            yield self.make_batch(self.epoch, rows)

    def _batches(self) -> Iterator[Tensor]:
        """The epoch's rows, ``batch_size`` at a time."""
        waiting = torch.empty(0, dtype=torch.long)
        for rows in self._order():
            waiting = torch.cat([waiting, rows])
            *full, waiting = torch.split(waiting, self.batch_size)
            yield from full
        if len(waiting):
            yield waiting

    def _order(self) -> Iterator[Tensor]:
        """The epoch's rows, some blocks at a time."""
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
