"""Attention masks from token positions, one for each type of layer: full, sliding window, chunked.

With draft trees in a cache, columns are not positions, so windows are counted in positions. A token at position i
attends to position j of its own text if j ≤ i; in a sliding layer also i - j < window; in a chunked layer both must be
in the same chunk. The masks are computed on the model's device from a few numbers for each token (:func:`placed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .kv_cache import RaggedKVCache, WritePlan
from .text_cache import Read, TreeMask

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
PLACES = 3  # numbers of a token before the columns it attends to: position, column, number of first columns


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
    """(B, n, 3 + E) :func:`places` of the tokens of a forward."""
    trees = {cache.rows[read.text] - plan.low: read.tree for read in reads if read.tree is not None}
    return places(plan.starts, plan.counts, plan.new, trees, longest_path(trees.values()))


def longest_path(trees: Iterable[TreeMask]) -> int:
    """The largest number of columns that a token sees beside the first ones."""
    return max([1, *(len(ancestors) + 1 for tree in trees for ancestors in tree.above)])


def places(
    starts: Sequence[int], counts: Sequence[int], n: int, trees: Mapping[int, TreeMask], others: int, padding: int = 0
) -> Tensor:
    """(B, n, 3 + E) where the tokens of a padded forward are, aligned at the right, and what they attend to.

    These are position, column, the number of first columns that it attends to, and E = ``others`` further columns: its
    ancestors in a tree, and its own, which may repeat.

    Args:
        starts: each row's number of columns before the forward.
        counts: each row's number of new tokens.
        trees: by row.
        padding: the column of padding, which attends to this column alone.
    """
    past, new = torch.tensor([starts, counts]).unsqueeze(-1)  # (B, 1) each
    columns = past + new - n + torch.arange(n)  # (B, n)
    found: Tensor = columns.unsqueeze(-1).repeat(1, 1, PLACES + others)
    found[columns < past] = torch.tensor([0, padding, 0, *[padding] * others])
    for row, tree in trees.items():
        if tree.above:
            end = starts[row] + counts[row]
            found[row, n - len(tree.above) :] = torch.tensor([
                [tree.trunk + len(above), own, tree.trunk, *above, *[own] * (others - len(above))]
                for own, above in enumerate(tree.above, end - len(tree.above))
            ])  # fmt: skip
    return found


def layer_masks(types: MaskTypes, places: Tensor, columns: Tensor) -> dict[str, Tensor]:
    """(B, n, C) bool by layer type: which of the ``columns`` 0 … C - 1 each of the tokens at ``places`` attends to."""
    positions, first, others = places[..., :1], places[..., 2:PLACES], places[..., PLACES:]
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
