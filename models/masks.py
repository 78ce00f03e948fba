"""Attention masks computed from token positions, one for each type of layer: full, sliding window, chunked.

With draft trees in a cache, columns differ from positions, so that windows are counted in positions. A token at
position i attends to position j of its text if j ≤ i. A sliding layer also requires i - j < window. A chunked layer
requires both positions in the same chunk. The masks are computed on the model's device from a few numbers for each
token (:func:`lay_out`).
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
        sizes: window or chunk in tokens by layer type; None for full attention.
        by_type: whether the model expects a dict of masks by layer type instead of a single mask.
    """

    sizes: dict[str, int | None]
    by_type: bool

    @property
    def plain(self) -> bool:
        """Return true if every layer attends to the whole text."""
        return set(self.sizes) == {FULL}


def mask_types(config: Any) -> MaskTypes | None:
    """Return the masks of a decoder's text ``config``, as in transformers' ``create_masks_for_generate``.

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
    single_type = windowed[0] if windowed else FULL
    return MaskTypes({single_type: sizes[single_type]}, False)


def place_tokens(plan: WritePlan, reads: Sequence[Read], cache: RaggedKVCache) -> Tensor:
    """Return :func:`lay_out` (B, n, 4 + E) of the forward ``plan`` of ``reads``."""
    rows = [cache.rows[read.text] - plan.low for read in reads]
    starts = [plan.starts[row] for row in rows]
    return lay_out(reads, rows, starts, (plan.high - plan.low, plan.new, longest_path(reads)))


def longest_path(reads: Sequence[Read]) -> int:
    """Return the maximum number E of columns that a token attends to besides the first columns."""
    return max([1, *(len(above) + 1 for read in reads if read.tree is not None for above in read.tree.above)])


def lay_out(
    reads: Sequence[Read], rows: Sequence[int], starts: Sequence[int], sizes: tuple[int, int, int], padding: int = 0
) -> Tensor:
    """Return a tensor (B, n, 4 + E) that describes the tokens of a padded forward, aligned at the right.

    The entries of a token are its id, its position, its column, the number of first columns that it attends to, and E
    further columns that it attends to: its ancestors in a tree, and its own column, which may repeat.

    Args:
        reads: the new tokens.
        rows, starts: the row of each of ``reads``, and its number of columns before the forward.
        sizes: B, n and E.
        padding: the column of padding tokens, which attend to this column only.
    """
    count, n, extra = sizes
    padding_rows = [[0, 0, padding, 0, *[padding] * extra]] * n
    laid_rows = [padding_rows] * count
    for read, row, start in zip(reads, rows, starts, strict=True):
        tokens = [[token, i, i, i, *[i] * extra] for i, token in enumerate(read.tokens, start)]
        if read.tree is not None:
            for index, above in enumerate(read.tree.above, len(tokens) - len(read.tree.above)):
                column, trunk = start + index, read.tree.trunk
                further = [*above, *[column] * (extra - len(above))]
                tokens[index] = [read.tokens[index], trunk + len(above), column, trunk, *further]
        laid_rows[row] = padding_rows[len(tokens) :] + tokens
    return torch.tensor(laid_rows)


def layer_masks(types: MaskTypes, tokens: Tensor, columns: Tensor) -> dict[str, Tensor]:
    """Return by layer type a bool mask (B, n, C) of the columns that each token attends to.

    Args:
        types: the types of layers.
        tokens: (B, n, 4 + E) the result of :func:`lay_out`.
        columns: (C,) the columns 0 … C - 1.
    """
    positions, first, extra = tokens[..., 1:2], tokens[..., 3:4], tokens[..., 4:]
    in_first = columns < first
    extra_positions = torch.minimum(
        first + columns[: extra.shape[-1]], positions
    )  # their positions, the own one the last
    masks = {}
    for name, size in types.sizes.items():
        if size is None:
            masks[name] = in_first.scatter(-1, extra, torch.ones_like(extra, dtype=torch.bool))
        elif name == SLIDING:
            masks[name] = (in_first & (positions - columns < size)).scatter(
                -1, extra, positions - extra_positions < size
            )
        else:
            chunk = positions // size
            masks[name] = (in_first & (columns // size == chunk)).scatter(-1, extra, extra_positions // size == chunk)
    return masks


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive mask (B, 1, n, C): 0 where ``mask`` (B, n, C) is true, else the lowest number of ``dtype``."""
    scores = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return scores.masked_fill_(~mask, torch.finfo(dtype).min).unsqueeze(1)
