"""Attention masks from token positions, one for each type of layer: full, sliding window, chunked.

With draft trees in a cache, columns are not positions, so windows are counted in positions. A token at position i
attends to position j of its own text if j ≤ i; in a sliding layer also i - j < window; in a chunked layer both must be
in the same chunk. The masks are computed on the model's device from a few numbers for each token (:func:`placed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .kv_cache import RaggedKVCache, WritePlan
from .read import Read

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


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


def placed(plan: WritePlan, reads: Sequence[Read], cache: RaggedKVCache) -> Tensor:
    """(B, n, 4 + E) :func:`laid_out` of a forward."""
    rows = [cache.rows[read.text] - plan.low for read in reads]
    starts = [plan.starts[row] for row in rows]
    return laid_out(reads, rows, starts, (plan.high - plan.low, plan.new, longest_path(reads)))


def longest_path(reads: Sequence[Read]) -> int:
    """The largest number of columns that a token attends to beside the first ones."""
    return max([1, *(len(above) + 1 for read in reads if read.tree is not None for above in read.tree.above)])


def laid_out(
    reads: Sequence[Read], rows: Sequence[int], starts: Sequence[int], sizes: tuple[int, int, int], padding: int = 0
) -> Tensor:
    """(B, n, 4 + E) the tokens of a padded forward, aligned at the right.

    These are id, position, column, the number of first columns that it attends to, and E further columns: its ancestors
    in a tree, and its own, which may repeat.

    Args:
        rows, starts: the row of each of ``reads``, and its number of columns before the forward.
        sizes: B, n and E.
        padding: the column of padding, which attends to this column alone.
    """
    count, n, others = sizes
    nothing = [[0, 0, padding, 0, *[padding] * others]] * n
    found = [nothing] * count
    for read, row, start in zip(reads, rows, starts, strict=True):
        own = [[token, i, i, i, *[i] * others] for i, token in enumerate(read.tokens, start)]
        if read.tree is not None:
            for place, above in enumerate(read.tree.above, len(own) - len(read.tree.above)):
                column, trunk = start + place, read.tree.trunk
                seen = [*above, *[column] * (others - len(above))]
                own[place] = [read.tokens[place], trunk + len(above), column, trunk, *seen]
        found[row] = nothing[len(own) :] + own
    return torch.tensor(found)


def layer_masks(types: MaskTypes, tokens: Tensor, columns: Tensor) -> dict[str, Tensor]:
    """(B, n, C) bool by layer type: which of the ``columns`` 0 … C - 1 each token attends to.

    Args:
        tokens: (B, n, 4 + E) as :func:`laid_out`.
    """
    positions, first, others = tokens[..., 1:2], tokens[..., 3:4], tokens[..., 4:]
    seen = columns < first
    of_others = torch.minimum(first + columns[: others.shape[-1]], positions)  # their positions, the own one the last
    masks = {}
    for name, size in types.sizes.items():
        if size is None:
            masks[name] = seen.scatter(-1, others, torch.ones_like(others, dtype=torch.bool))
        elif name == SLIDING:
            masks[name] = (seen & (positions - columns < size)).scatter(-1, others, positions - of_others < size)
        else:
            chunk = positions // size
            masks[name] = (seen & (columns // size == chunk)).scatter(-1, others, of_others // size == chunk)
    return masks


def as_scores(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, n, C) additive mask for all layers: 0 where ``mask`` is true, the lowest number elsewhere."""
    scores = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return scores.masked_fill_(~mask, torch.finfo(dtype).min).unsqueeze(1)
