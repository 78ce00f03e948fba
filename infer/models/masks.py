"""Attention masks from token positions, one for each type of layer: full, sliding window, chunked.

With draft trees in a cache, columns are not positions, so windows are counted in positions. A token at position i
attends to position j of its own text if j ≤ i; in a sliding layer also i - j < window; in a chunked layer both must be
in the same chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .kv_cache import RaggedKVCache, WritePlan
from .text_cache import Read

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class MaskTypes:
    """The masks of a model's layers.

    Attributes:
        sizes: window or chunk in tokens by layer type, None for full attention.
        by_type: whether the model takes a dict of masks by layer type instead of a single mask.
    """

    sizes: dict[str, int | None]
    by_type: bool

    @property
    def plain(self) -> bool:
        """Whether every layer attends to the whole text."""
        return set(self.sizes) == {FULL}


def mask_types(config: Any) -> MaskTypes | None:
    """The masks of a decoder's text ``config``, as in transformers' ``create_masks_for_generate``.

    None if a type of layer is not supported.
    """
    sizes = {
        FULL: None,
        SLIDING: getattr(config, "sliding_window", None),
        CHUNKED: getattr(config, "attention_chunk_size", None),
    }
    types = getattr(config, "layer_types", None)
    if types is not None:
        unknown = set(types) - sizes.keys()
        return None if unknown else MaskTypes({name: sizes[name] for name in sorted(set(types))}, True)
    windowed = [name for name in (SLIDING, CHUNKED) if sizes[name] is not None]
    only = windowed[0] if windowed else FULL
    return MaskTypes({only: sizes[only]}, False)


def positions_of(plan: WritePlan, reads: Sequence[Read], cache: RaggedKVCache) -> Tensor:
    """(B, n) position of each new token in its text, aligned at the right; 0 at padding."""
    positions = torch.zeros(plan.high - plan.low, plan.new, dtype=torch.long)
    for read in reads:
        row = cache.rows[read.text] - plan.low
        start, count = plan.starts[row], len(read.tokens)
        place = positions[row, plan.new - count :]
        place.copy_(torch.arange(start, start + count))
        if read.tree is not None:
            place[count - len(read.tree.above) :] = torch.tensor(read.tree.positions())
    return positions


def visible(plan: WritePlan, reads: Sequence[Read], cache: RaggedKVCache) -> tuple[Tensor, Tensor]:
    """The columns that each new token may attend to by causality, and every column's position.

    Returns:
        (B, n, width) bool, at padding true only for column 0; (B, width) positions.
    """
    rows, n = plan.high - plan.low, plan.new
    last = torch.zeros(rows, n, dtype=torch.long)  # the column of each new token
    columns = torch.arange(plan.width)
    keys = columns.repeat(rows, 1)
    for row, (start, count) in enumerate(zip(plan.starts, plan.counts, strict=True)):
        last[row, n - count :] = torch.arange(start, start + count)
    seen = columns <= last.unsqueeze(-1)
    for read in reads:
        if read.tree is not None:
            row, first = cache.rows[read.text] - plan.low, n - len(read.tree.above)
            for node, ancestors in enumerate(read.tree.above):
                own = plan.starts[row] + len(read.tokens) - len(read.tree.above) + node
                seen[row, first + node] = False
                seen[row, first + node, : read.tree.trunk] = True
                path = [*ancestors, own]
                seen[row, first + node, path] = True
                keys[row, path] = torch.arange(read.tree.trunk, read.tree.trunk + len(path))
    return seen, keys


def layer_masks(types: MaskTypes, plan: WritePlan, reads: Sequence[Read], cache: RaggedKVCache) -> dict[str, Tensor]:
    """(B, n, width) bool by layer type: the columns that each new token attends to."""
    seen, keys = visible(plan, reads, cache)
    queries = None if types.plain else positions_of(plan, reads, cache)
    masks = {}
    for name, size in types.sizes.items():
        mask = seen
        if size is not None and queries is not None:
            if name == SLIDING:
                mask = seen & (queries.unsqueeze(-1) - keys.unsqueeze(1) < size)
            else:
                mask = seen & (queries.unsqueeze(-1) // size == keys.unsqueeze(1) // size)
        masks[name] = mask
    return masks


def as_scores(mask: Tensor, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """(B, 1, n, width) additive mask for all layers: 0 where ``mask`` is true, the lowest number elsewhere."""
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, lowest).unsqueeze(1).to(device)
