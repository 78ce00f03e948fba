"""A KV cache of several texts, each in its own row and with its own length.

Token i of the text in row r is at column i: columns are positions without gaps. Setting a row's length rolls the row
back. Texts are added and removed between forwards. When a text is removed, the last row moves to its place. Masks hide
the columns beyond a row's length.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from .read import Read
from .text_cache import TextCache

COMPACT_AT = 4  # buffers are shrunk if they are this many times as wide as needed
FEWEST = 256  # minimum number of columns of buffers of fixed sizes


def size_above(needed: int, least: int = 1) -> int:
    """Return ``least`` if ``needed`` is not larger, else the smallest power of two that is at least ``needed``."""
    return least if needed <= least else 1 << (needed - 1).bit_length()


@dataclass
class WritePlan:
    """The places where one forward writes keys and values, and the number of columns that it reads.

    Attributes:
        low, high: the rows of the forward, [low, high).
        starts: each row's length before the forward.
        counts: number of new tokens of each row; 0 for rows in between without new tokens.
        width: number of columns that attention reads: the length of the longest row after the forward.
        aligned: whether all rows have the same length and number of new tokens, so that one slice is written.
        indices: results of :meth:`padded` by device.
    """

    low: int
    high: int
    starts: list[int]
    counts: list[int]
    width: int
    aligned: bool
    indices: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def new(self) -> int:
        """Maximum number of new tokens of a row."""
        return max(self.counts)

    def padded(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return rows (B, 1) and columns (B, n) of the new tokens, aligned at the right; padding: column ``width``."""
        if device not in self.indices:
            n = self.new
            columns = torch.full((self.high - self.low, n), self.width)
            for row, (start, count) in enumerate(zip(self.starts, self.counts, strict=True)):
                columns[row, n - count :] = torch.arange(start, start + count)
            rows = torch.arange(self.low, self.high).unsqueeze(1)
            self.indices[device] = rows.to(device), columns.to(device)
        return self.indices[device]


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, (rows, H, columns, D); attention reads a view of the rows and columns in use.

    A layer that shares another layer's keys (Gemma 3n) stays empty.

    Attributes:
        rows, columns: the sizes of the buffers.
        pair: (2, rows, H, columns, D) keys and values in one buffer, if the cache is static and their shapes are equal;
            otherwise None.
    """

    is_sliding = False  # windows are part of the masks, which count token positions
    is_croppable = True

    def __init__(self, cache: RaggedKVCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = weakref.ref(cache)  # a cycle would keep buffers on a GPU until Python's garbage collector runs
        self.rows = self.columns = 0
        self.pair: Tensor | None = None

    @property
    def cache(self) -> RaggedKVCache:
        """The cache that the layer belongs to."""
        cache = self._cache()
        assert cache is not None
        return cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._make_buffers(key_states, value_states)
        self.is_initialized = True

    def _make_buffers(self, key_states: Tensor, value_states: Tensor) -> None:
        """Create buffers of zeros: attention multiplies masked columns by zero, so that they must not be NaN."""
        rows, columns = self.rows, self.columns = self.cache.n_rows, self.cache.n_columns
        sizes = [(rows, states.shape[1], columns, states.shape[-1]) for states in (key_states, value_states)]
        self.pair = None
        if self.cache.static and sizes[0] == sizes[1]:
            self.pair = key_states.new_zeros(2, *sizes[0])
            self.keys, self.values = self.pair.unbind(0)
        else:
            self.keys, self.values = key_states.new_zeros(sizes[0]), value_states.new_zeros(sizes[1])

    def fit(self, key_states: Tensor, value_states: Tensor) -> None:
        """Resize the buffers to the sizes of the cache, and keep their content."""
        if self.rows == self.cache.n_rows and self.columns == self.cache.n_columns:
            return  # the usual case
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return
        assert self.keys is not None
        assert self.values is not None
        rows, columns = self.rows, self.columns
        overlap = min(rows, self.cache.n_rows), min(columns, self.cache.n_columns)
        old_keys, old_values = self.keys, self.values
        self.cache.forwards.clear()  # they use the old buffers
        self._make_buffers(old_keys, old_values)
        for new, old in ((self.keys, old_keys), (self.values, old_values)):
            new[: overlap[0], :, : overlap[1]] = old[: overlap[0], :, : overlap[1]]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values by the cache's plan, or to the cache's ``slots``; called by transformers' models."""
        if self.cache.slots is None:
            return self.write(self.cache.plan, key_states, value_states)
        return LayerSlots(self, *self.cache.slots).update(key_states, value_states)

    def write(self, plan: WritePlan, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Write (B, H, n, D) at the positions of ``plan``; return views for attention, (B, H, width, D)."""
        self.fit(key_states, value_states)
        if plan.aligned:
            start, n = plan.starts[0], plan.new
            keys, values = self.read(plan)
            keys.narrow(2, start, n).copy_(key_states)
            values.narrow(2, start, n).copy_(value_states)
            return keys, values
        rows, columns = plan.padded(key_states.device)
        return self.scatter(plan, rows, columns, key_states.transpose(1, 2), value_states.transpose(1, 2))

    def scatter(
        self, plan: WritePlan, rows: Tensor, columns: Tensor, key_states: Tensor, value_states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write (…, H, D) to ``rows`` and ``columns`` (…); return views for attention, (B, H, width, D)."""
        if self.rows != self.cache.n_rows or self.columns != self.cache.n_columns:
            self.fit(key_states.unsqueeze(0).transpose(1, -2), value_states.unsqueeze(0).transpose(1, -2))
        assert self.keys is not None
        assert self.values is not None
        self.keys[rows, :, columns] = key_states
        self.values[rows, :, columns] = value_states
        return self.read(plan)

    def read(self, plan: WritePlan) -> tuple[Tensor, Tensor]:
        """Return views of the keys and values of the plan's rows and columns, (B, H, width, D) each."""
        assert self.keys is not None
        assert self.values is not None
        keys, values = self.keys, self.values
        if plan.high - plan.low < self.cache.n_rows:
            keys, values = keys[plan.low : plan.high], values[plan.low : plan.high]
        return keys.narrow(2, 0, plan.width), values.narrow(2, 0, plan.width)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self.cache.plan.starts[0]  # called only if all rows of a forward have one length

    def get_max_length(self) -> int:
        return -1  # no limit; for models a limit means a static cache

    def move_row(self, source: int, destination: int, length: int) -> None:
        """Copy the first ``length`` columns of row ``source`` to row ``destination``."""
        for buffer in (self.keys, self.values):
            if buffer is not None:
                buffer[destination, :, :length] = buffer[source, :, :length]

    def move_columns(self, row: int, start: int, columns: Tensor) -> None:
        """Copy ``columns`` of ``row`` to the columns from ``start`` on."""
        for buffer in (self.keys, self.values):
            # Indexing copies all columns before the first is written.
            if buffer is not None:
                buffer[row, :, start : start + len(columns)] = buffer[row][:, columns.to(buffer.device)]

    def reset(self) -> None:
        self.keys = self.values = self.pair = None
        self.rows = self.columns = 0
        self.is_initialized = False


class LayerSlots:
    """The buffers of one layer of the cache, and the places where a forward writes.

    A layer of the model reads and writes its keys and values by this object.

    Args:
        layer: the layer of the cache.
        rows, columns: (B, 1) and (B, n) places of the new keys and values.

    Raises:
        ValueError: the layer has no buffers, because it shares another layer's keys.
    """

    def __init__(self, layer: RaggedLayer, rows: Tensor, columns: Tensor) -> None:
        if layer.keys is None or layer.values is None:
            raise ValueError("a layer shares another's keys")
        self.keys, self.values, self.rows, self.columns = layer.keys, layer.values, rows, columns

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, H, n, D); return the whole rows, (B, H, C, D)."""
        # Under autocast the dtypes may differ.
        self.keys[self.rows, :, self.columns] = key_states.transpose(1, 2).to(self.keys.dtype)
        self.values[self.rows, :, self.columns] = value_states.transpose(1, 2).to(self.values.dtype)
        return self.keys[: len(self.rows)], self.values[: len(self.rows)]


class RaggedKVCache(Cache, TextCache):
    """Texts by key, each in a row, with a :class:`RaggedLayer` for each layer of a decoder.

    Args:
        layers: number of layers.
        static: whether the sizes of the buffers are powers of two, and the buffers are kept without texts, so that
            :mod:`.static_forward` has fixed shapes.
        least: minimum number of columns of the buffers of a static cache.
        column_bytes: bytes of one column of one row in all layers together, if an earlier cache has measured them.

    Attributes:
        texts, lengths, reserved: for each row its text, the text's length, and the number of tokens it has room for.
        rows: the row of each text.
        n_rows, n_columns: sizes of the buffers after the next forward.
        plan: plan of the current forward.
        slots: rows (B, 1) and columns (B, n) that a forward of fixed shape writes to; None in other forwards.
        layer_slots: the slots with the buffers of each layer, for layers that use them as their cache.
        forwards: the forwards of fixed shapes on these buffers.
    """

    def __init__(self, layers: int, static: bool = False, least: int = FEWEST, column_bytes: int = 0) -> None:
        self.static, self.least, self._shown_column_bytes = static, least, column_bytes
        self.slots: tuple[Tensor, Tensor] | None = None
        self.layer_slots: Sequence[LayerSlots] = ()
        self.forwards: dict[Hashable, Any] = {}
        self._pool: Any = None
        self.ragged_layers = [RaggedLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self.ragged_layers))
        self.texts: list[Hashable] = []  # by row
        self.rows: dict[Hashable, int] = {}
        self.lengths: list[int] = []  # by row
        self.reserved: list[int] = []  # by row
        self.n_rows = self.n_columns = 0
        self.plan = WritePlan(0, 0, [0], [0], 0, True)

    def add(self, text: Hashable, reserve: int) -> None:
        """Add an empty text with room for ``reserve`` tokens; it may grow longer."""
        assert text not in self.rows
        self.rows[text] = len(self.texts)
        self.texts.append(text)
        self.lengths.append(0)
        self.reserved.append(reserve)
        self.n_rows = max(self.n_rows, self._rows_for(len(self.texts)))
        self._set_columns()

    def _rows_for(self, texts: int) -> int:
        """Return the number of rows of buffers for ``texts`` texts."""
        return size_above(texts) if self.static else texts

    def growth(self, reserves: Sequence[int]) -> int:
        rows = max(self.n_rows, self._rows_for(len(self.texts) + len(reserves)))
        needed = max([*self.reserved, *self.lengths, *reserves]) + 1
        columns = max(self.n_columns, size_above(needed, self.least) if self.static else needed)
        column_bytes = self.column_bytes
        before = self.n_rows * self.n_columns if self.initialized else 0
        # A layer's buffers are copied to larger ones before they are freed.
        copied = column_bytes * before // len(self.ragged_layers) if rows * columns > before else 0
        return column_bytes * (rows * columns - before) + copied

    @property
    def column_bytes(self) -> int:
        """Bytes of one column of one row in all layers together; 0 if they were not measured yet."""
        buffers = [
            buffer for layer in self.ragged_layers for buffer in (layer.keys, layer.values) if buffer is not None
        ]
        return sum(buffer[:1, :, :1].nbytes for buffer in buffers) or self._shown_column_bytes

    def remove(self, text: Hashable) -> None:
        """Remove a text; the last row moves to its place. Without texts only a static cache holds memory."""
        row, last = self.rows.pop(text), len(self.texts) - 1
        if row != last:
            if self.lengths[last]:
                for layer in self.ragged_layers:
                    layer.move_row(last, row, self.lengths[last])
            self.texts[row], self.lengths[row] = self.texts[last], self.lengths[last]
            self.reserved[row] = self.reserved[last]
            self.rows[self.texts[row]] = row
        for values in (self.texts, self.lengths, self.reserved):
            values.pop()
        if self.texts:
            self._set_columns()
        elif not self.static:
            self._reset()

    def _reset(self) -> None:
        """Free the buffers."""
        self.n_rows = self.n_columns = 0
        self.forwards.clear()
        for layer in self.ragged_layers:
            layer.reset()

    def _set_columns(self) -> None:
        """Set ``n_columns`` by the texts' lengths and reserved lengths."""
        needed = max(*self.reserved, *self.lengths) + 1  # one more, for padding
        if self.static:
            self.n_columns = max(self.n_columns, size_above(needed, self.least))
        elif needed > self.n_columns or needed * COMPACT_AT < self.n_columns:
            self.n_columns = needed

    def clear(self) -> None:
        """Remove all texts, also after an interrupted :meth:`remove`."""
        self.rows.clear()
        for values in (self.texts, self.lengths, self.reserved):
            values.clear()
        self._reset()

    def __contains__(self, text: Hashable) -> bool:
        return text in self.rows

    def length(self, text: Hashable) -> int:
        """Number of tokens of ``text`` in the cache."""
        return self.lengths[self.rows[text]]

    def crop_text(self, text: Hashable, length: int) -> None:
        """Roll ``text`` back to its first ``length`` tokens."""
        row = self.rows[text]
        assert 0 <= length <= self.lengths[row]
        self.lengths[row] = length

    def keep(self, text: Hashable, length: int, columns: Sequence[int]) -> None:
        """Keep the first ``length`` columns of ``text``, and move ``columns``, a path of a tree, to follow them."""
        row = self.rows[text]
        assert all(length <= column < self.lengths[row] for column in columns)
        if list(columns) != list(range(length, length + len(columns))):
            index = torch.tensor(columns)
            for layer in self.ragged_layers:
                layer.move_columns(row, length, index)
        self.lengths[row] = length + len(columns)

    def start_forward(self, texts: Sequence[Hashable], counts: Sequence[int]) -> WritePlan:
        """Plan a forward that appends ``counts`` tokens to ``texts``; :meth:`end_forward` completes it."""
        self.plan = self._plan([self.rows[text] for text in texts], counts)
        return self.plan

    def plan_forward(self, reads: Sequence[Read]) -> WritePlan:
        """Plan a part of a forward, for ``reads``; :meth:`end_forward` completes it."""
        return self._plan([self.rows[read.text] for read in reads], [len(read.tokens) for read in reads])

    def _plan(self, rows: Sequence[int], counts: Sequence[int]) -> WritePlan:
        """Return the plan of a forward that appends ``counts`` tokens to ``rows``, and set ``n_columns``."""
        low, high = min(rows), max(rows) + 1
        starts = self.lengths[low:high]
        new = [0] * (high - low)
        for row, count in zip(rows, counts, strict=True):
            new[row - low] = count
        width = max(start + count for start, count in zip(starts, new, strict=True))
        if width >= self.n_columns:
            self.n_columns = size_above(width + 1, self.least) if self.static else width + 1 + width // 4
        aligned = len(starts) == 1 or (min(new) == max(new) and min(starts) == max(starts))
        return WritePlan(low, high, starts, new, width, aligned)

    @property
    def initialized(self) -> bool:
        """Return true if the layers have buffers."""
        return any(layer.is_initialized for layer in self.ragged_layers)

    def fit(self) -> None:
        """Resize all buffers to ``n_rows`` and ``n_columns``."""
        for layer in self.ragged_layers:
            if layer.is_initialized:
                assert layer.keys is not None
                assert layer.values is not None
                layer.fit(layer.keys, layer.values)

    def pool(self) -> Any:
        """Return the memory pool of this cache's CUDA graphs, which never run at the same time."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def end_forward(self, plan: WritePlan | None = None) -> None:
        """Add the numbers of tokens of ``plan`` to the lengths. Default: the plan of :meth:`start_forward`."""
        plan = plan or self.plan
        for row, count in enumerate(plan.counts, plan.low):
            self.lengths[row] += count

    def spread(self, text: Hashable, columns: Sequence[Sequence[int]], reserve: int) -> RaggedKVCache:
        """Return a new cache with a row for each list of ``columns`` (of equal lengths), copied from ``text``.

        Args:
            text: the text.
            columns: for each row the columns of ``text`` that it consists of.
            reserve: number of tokens that each row has room for.
        """
        row = self.rows[text]
        spread = type(self)(len(self.ragged_layers))
        for path in range(len(columns)):
            spread.add(path, reserve)
        spread.lengths = [len(columns[0])] * len(columns)
        index = torch.tensor(columns, dtype=torch.long)
        for layer, source in zip(spread.ragged_layers, self.ragged_layers, strict=True):
            if source.is_initialized:
                assert source.keys is not None
                assert source.values is not None
                layer.lazy_initialization(source.keys, source.values)
                for new, old in ((layer.keys, source.keys), (layer.values, source.values)):
                    assert new is not None
                    picked = old[row][:, index.to(old.device)]  # (H, B, W, D)
                    new[:, :, : index.shape[1]] = picked.transpose(0, 1)
        return spread

    def append_from(self, text: Hashable, places: Sequence[tuple[RaggedKVCache, int, int]]) -> None:
        """Append tokens of other caches to ``text``; ``places`` holds cache, row and column of each token."""
        self.start_forward([text], [len(places)])
        for index, layer in enumerate(self.ragged_layers):
            sources = [(other.ragged_layers[index], row, column) for other, row, column in places]
            if sources[0][0].is_initialized:
                keys, values = [], []
                for source, row, column in sources:
                    assert source.keys is not None
                    assert source.values is not None
                    keys.append(source.keys[row, :, column])
                    values.append(source.values[row, :, column])
                layer.update(torch.stack(keys, 1).unsqueeze(0), torch.stack(values, 1).unsqueeze(0))
        self.end_forward()
