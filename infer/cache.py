"""A KV cache that is allocated once and rolled back by setting its length: nothing is concatenated, nothing copied."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers of (B, H, capacity, D); attention sees a view of the first ``length``."""

    is_sliding = False  # a model with sliding attention gets its window from the mask
    is_croppable = True

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, key_size = key_states.shape
        self.keys = key_states.new_empty(batch, heads, self.capacity, key_size)
        self.values = value_states.new_empty(batch, heads, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append (B, H, n, D) and return views of everything so far, (B, H, length + n, D)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        end = self.length + key_states.shape[-2]
        assert end <= self.capacity, f"KV cache of {self.capacity} tokens is full"
        self.keys.narrow(2, self.length, end - self.length).copy_(key_states)
        self.values.narrow(2, self.length, end - self.length).copy_(value_states)
        self.length = end
        return self.filled()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1  # the buffer's end is not a limit of the model's: models read a limit here as "static cache"

    def keep(self, length: int, columns: Tensor) -> None:
        """See :meth:`PreallocatedCache.keep`."""
        keys, values = self.filled()
        end = length + len(columns)
        keys[:, :, length:end] = keys[:, :, columns]  # the right side is a copy before anything is written
        values[:, :, length:end] = values[:, :, columns]
        self.length = end

    def gather(self, rows: Tensor, columns: Tensor, capacity: int) -> None:
        """See :meth:`PreallocatedCache.gather`."""
        keys, values = self.filled()
        self.keys, self.values = _gathered(keys, rows, columns, capacity), _gathered(values, rows, columns, capacity)
        self.capacity, self.length = capacity, columns.shape[1]

    def expand(self, rows: int) -> None:
        """See :meth:`PreallocatedCache.expanded`."""
        keys, values = self.filled()
        self.keys, self.values = keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1)

    def refill(self, rows: Tensor, width: int, newcomers: PreallocatedLayer | None, capacity: int) -> None:
        """See :meth:`PreallocatedCache.refill`."""
        keys, values = self.filled()
        new_keys, new_values = (None, None) if newcomers is None else newcomers.filled()
        self.keys = _refilled(keys, rows, width, new_keys, capacity)
        self.values = _refilled(values, rows, width, new_values, capacity)
        self.capacity, self.length = capacity, width

    def filled(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens read so far, (B, H, length, D)."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys.narrow(2, 0, self.length), self.values.narrow(2, 0, self.length)


def _gathered(old: Tensor, rows: Tensor, columns: Tensor, capacity: int) -> Tensor:
    """(B', H, capacity, D) from old (B, H, length, D)."""
    buffer = old.new_empty(len(rows), old.shape[1], capacity, old.shape[3])
    index = columns[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[3])
    buffer[:, :, : columns.shape[1]] = old[rows].gather(2, index)
    return buffer


def _refilled(old: Tensor, rows: Tensor, width: int, new: Tensor | None, capacity: int) -> Tensor:
    kept, added = len(rows), 0 if new is None else len(new)
    buffer = old.new_empty(kept + added, old.shape[1], capacity, old.shape[3])
    parts = [(buffer[:kept], old[rows, :, -width:])]
    if new is not None:
        parts.append((buffer[kept:], new))
    for place, part in parts:
        start = width - part.shape[2]
        place[:, :, :start] = 0  # masked, but whatever memory held there, times zero, must be zero
        place[:, :, start:width] = part
    return buffer


class PreallocatedCache(Cache):
    """One :class:`PreallocatedLayer` for each layer of a decoder."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.own = [PreallocatedLayer(capacity) for _ in range(layers)]
        super().__init__(layers=list(self.own))

    @property
    def length(self) -> int:
        return self.own[0].length

    def mark_dynamic(self) -> None:
        """Tell the compiler that the next text will have buffers of another size."""
        for layer in self.own:
            torch._dynamo.maybe_mark_dynamic(layer.keys, 2)
            torch._dynamo.maybe_mark_dynamic(layer.values, 2)

    def crop_to(self, length: int) -> None:
        """Forget all but the first ``length`` tokens; they are overwritten by the next update."""
        assert 0 <= length <= self.length
        for layer in self.own:
            layer.length = length

    def keep(self, length: int, columns: list[int]) -> None:
        """Forget all but the first ``length`` columns and ``columns``, which close up behind them: a path of a tree."""
        assert all(length <= column < self.length for column in columns)
        if columns == list(range(length, length + len(columns))):
            self.crop_to(length + len(columns))
            return
        assert self.own[0].keys is not None
        index = torch.tensor(columns, device=self.own[0].keys.device)
        for layer in self.own:
            layer.keep(length, index)

    def gather(self, rows: Tensor, columns: Tensor, capacity: int) -> None:
        """Keep ``rows`` (B',), of each its ``columns`` (B', W) in this order; make room for ``capacity`` columns."""
        for layer in self.own:
            layer.gather(rows, columns, capacity)

    def spread(self, columns: Tensor, capacity: int) -> PreallocatedCache:
        """Of a batch of one, a cache with a row for each of ``columns`` (B, W), which it holds in this order."""
        spread = self._copy()
        spread.gather(columns.new_zeros(len(columns)), columns, capacity)
        return spread

    def expanded(self, rows: int) -> PreallocatedCache:
        """Of a batch of one, the same for each of several rows: a view, to read from."""
        expanded = self._copy()
        for layer in expanded.own:
            layer.expand(rows)
        return expanded

    def first(self, layers: int) -> PreallocatedCache:
        """The first ``layers`` of the same tensors, whose length is set apart: what is written beyond the length here
        stands where this cache writes next."""
        return self._copy(layers)

    def _copy(self, layers: int | None = None) -> PreallocatedCache:
        """Another cache of the same tensors."""
        other = copy(self)
        other.own = [copy(layer) for layer in self.own[:layers]]
        other.layers = list(other.own)
        return other

    def append(self, other: PreallocatedCache, rows: Tensor, columns: Tensor) -> None:
        """Append to a batch of one n tokens of another cache, by their ``rows`` and ``columns`` there, (n,) each."""
        for layer, source in zip(self.own, other.own, strict=True):
            keys, values = source.filled()
            layer.update(*(part[rows, :, columns].transpose(0, 1).unsqueeze(0) for part in (keys, values)))

    def refill(self, rows: Tensor, width: int, newcomers: PreallocatedCache | None, capacity: int) -> None:
        """Change the batch between two forwards: finished rows leave, others take their places.

        Args:
            rows: rows to keep, in this order.
            width: columns to keep, counted from the last one back; at least the longest text of any row, old or new.
            newcomers: a cache that has read other texts, left-padded; its rows follow the kept ones, ends aligned.
            capacity: columns to make room for.
        """
        layers = [None] * len(self.own) if newcomers is None else newcomers.own
        for layer, new in zip(self.own, layers, strict=True):
            layer.refill(rows, width, new, capacity)


def as_row(tokens: list[int], device: torch.device) -> Tensor:
    """Token ids as a batch of one, (1, n)."""
    return torch.tensor([tokens], dtype=torch.long, device=device)
