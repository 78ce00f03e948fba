"""A batch of texts in one model's cache, each growing at its own pace.

All rows write to the same new columns, and what a row does not need there is masked: a shorter draft's padding, tokens
that were rejected. The holes this leaves are closed from time to time, in one copy that also sends finished rows away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .cached_model import CachedModel

ROOM = 48  # columns to spare after a copy: fewer copies for more, but longer rows to look through


class Rows:
    """B texts that one model has read.

    Attributes:
        model: the model; its cache is this batch's.
        lengths: tokens read, by row.
        real: (B, columns) which cached columns hold a token of the row's text.
    """

    def __init__(self, model: CachedModel, rows: int) -> None:
        self.model = model
        self.lengths = [0] * rows
        self.real = torch.zeros(rows, 0, dtype=torch.bool)
        model.start(0)

    def read(self, new: list[list[int]], *, last: bool) -> tuple[Tensor, Tensor]:
        """Read each row's ``new`` tokens, any number; they count as kept until :meth:`forget`.

        Args:
            last: align them at the right and give results for the last only; otherwise at the left, for all.

        Returns:
            logits (B, n or 1, V) and hidden states (B, n or 1, d); those at padding mean nothing.
        """
        width = max(map(len, new))
        self._make_room(width)
        tokens = torch.zeros(len(new), width, dtype=torch.long)
        real = torch.zeros(len(new), width, dtype=torch.bool)
        positions = torch.zeros(len(new), width, dtype=torch.long)
        for row, row_tokens in enumerate(new):
            start = width - len(row_tokens) if last else 0
            place = slice(start, start + len(row_tokens))
            tokens[row, place] = torch.tensor(row_tokens, dtype=torch.long)
            real[row, place] = True
            positions[row, place] = torch.arange(len(row_tokens)) + self.lengths[row]
            self.lengths[row] += len(row_tokens)
        self.real = torch.cat([self.real, real], 1)
        device = self.model.device
        return self.model.forward(
            tokens.to(device),
            keep=1 if last else width,
            padding=None if bool(self.real.all()) else self.real.to(device),
            positions=positions.to(device),
        )

    def forget(self, kept: list[int]) -> None:
        """Of each row's text keep the first ``kept`` tokens."""
        for row, length in enumerate(kept):
            if length < self.lengths[row]:
                columns = self.real[row].nonzero().squeeze(1)
                self.real[row, columns[length:]] = False
                self.lengths[row] = length

    def keep_rows(self, rows: list[int]) -> None:
        """Send all rows but these away."""
        self.lengths = [self.lengths[row] for row in rows]
        self._copy(torch.tensor(rows), ROOM)

    def _make_room(self, width: int) -> None:
        cache = self.model.cache
        if not cache.own[0].is_initialized:  # nothing read yet
            self.model.start(width + ROOM)
        elif cache.length + width > cache.own[0].capacity:
            self._copy(torch.arange(len(self.lengths)), width + ROOM)

    def _copy(self, rows: Tensor, room: int) -> None:
        """Close the holes of ``rows``, their ends aligned, with ``room`` columns to spare."""
        real = self.real[rows]
        width = max(self.lengths)
        columns = torch.zeros(len(rows), width, dtype=torch.long)
        self.real = torch.zeros(len(rows), width, dtype=torch.bool)
        for row, length in enumerate(self.lengths):
            columns[row, width - length :] = real[row].nonzero().squeeze(1)
            self.real[row, width - length :] = True
        device = self.model.device
        self.model.cache.gather(rows.to(device), columns.to(device), width + room)
        self.model.reserve(width + room)
