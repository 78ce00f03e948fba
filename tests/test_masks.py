"""Masks and positions by layer type, against their definition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.infer.models import RaggedKVCache, Read, TreeMask, ancestors_of
from specpilot.infer.models.masks import CHUNKED, FULL, SLIDING, MaskTypes, layer_masks, positions_of


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
