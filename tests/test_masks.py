"""Masks by layer type, and attention of the lean forward, against their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.infer.models import RaggedKVCache, Read, TreeMask, ancestors_of
from specpilot.infer.models.lean_attention import SHORT, attention, per_group
from specpilot.infer.models.masks import CHUNKED, FULL, SLIDING, MaskTypes, as_scores, layer_masks, positions_of
from torch import Tensor


@settings(max_examples=150)
@given(data=st.data())
def test_masks_and_positions_are_those_of_each_tokens_own_text(data: st.DataObject) -> None:
    """Rows of several lengths: chains, trees behind new tokens, and trees whose first levels are cached."""
    window, chunk = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 5))
    cache = RaggedKVCache(0)
    reads: list[Read] = []
    paths: dict[int, list[list[int]]] = {}  # by row, the columns of each new token's own text, its own last
    for row in range(data.draw(st.integers(1, 4))):
        past, count = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 5))
        cache.add(row, 0)
        cache.lengths[row] = past
        parents = data.draw(st.sampled_from([[], [-1, -1, 0], [-1, 0, 0, 1], [-1, -1, 1, 2, 2]]))
        cached = data.draw(st.integers(0, len(parents) - 1)) if parents else 0
        trunk = past + count
        if cached:  # the tree's first nodes have been read before: what is new are the others alone
            trunk, count = past, 0
            cache.lengths[row] = past + cached
        above = [[trunk + a for a in ancestors_of(parents, node)] for node in range(len(parents))]
        own = [[*range(past + i + 1)] for i in range(count)]
        own += [[*range(trunk), *above[node], trunk + node] for node in range(cached, len(parents))]
        paths[row] = own
        tree = TreeMask(trunk, above[cached:]) if parents else None
        reads.append(Read(row, [0] * len(own), 1, tree))
    plan = cache.plan_forward(reads)
    types = MaskTypes({FULL: None, SLIDING: window, CHUNKED: chunk}, True)
    masks, positions = layer_masks(types, plan, reads, cache), positions_of(plan, reads, cache)
    for row, own in paths.items():
        for place, path in enumerate(own, plan.new - len(own)):
            last = len(path) - 1
            assert positions[row, place] == last
            expected = {
                FULL: path,
                SLIDING: path[max(0, last - window + 1) :],
                CHUNKED: [column for position, column in enumerate(path) if position // chunk == last // chunk],
            }
            for name, columns in expected.items():
                assert masks[name][row, place].nonzero().squeeze(1).tolist() == sorted(columns), name
        for place in range(plan.new - len(own)):  # padding attends to something, or attention would be NaN
            assert all(mask[row, place].any() for mask in masks.values())


# Attention of the lean forward, in every form that a kernel is chosen by


SIZE = 16  # of a head


def by_definition(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Softmax of the scores of the columns ``seen`` (B, n, m), head by head, in float64."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, 1) for part in (keys, values))
    scores = q.double() @ keys.transpose(-1, -2) / SIZE**0.5
    return scores.masked_fill(~seen.unsqueeze(1), -torch.inf).softmax(-1) @ values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 5, SHORT + 1])
@pytest.mark.parametrize("masked", [True, False], ids=["mask", "no mask"])
def test_every_form_is_attention(dtype: torch.dtype, heads: tuple[int, int], batch: int, n: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    width = n + 7
    cache = [torch.randn(batch, heads[1], width + 9, SIZE, generator=generator).to(dtype) for _ in range(2)]
    keys, values = (part[:, :, :width] for part in cache)  # views of longer buffers, as in a cache
    q = torch.randn(batch, n, heads[0], SIZE, generator=generator).to(dtype).transpose(1, 2)
    seen = torch.ones(batch, n, width, dtype=torch.bool)
    mask = None
    if masked:
        seen = torch.rand(batch, n, width, generator=generator) < 0.5
        seen[..., 0] = True
        mask = per_group(as_scores(seen, dtype), heads[0] // heads[1])
    found = attention(q, keys, values, mask, False)
    assert found.shape == q.shape
    assert found.dtype == dtype
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), by_definition(q, keys, values, seen), rtol=0, atol=tolerance)
