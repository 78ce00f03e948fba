"""Masks against their definition; forwards of fixed shapes against others, whatever has happened to the cache."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.infer.models import CausalLM, RaggedKVCache, Read, TreeMask, ancestors_of
from specpilot.infer.models.masks import CHUNKED, FULL, SLIDING, MaskTypes, layer_masks, placed
from specpilot.infer.models.static_forward import StaticForward
from transformers import PreTrainedModel

from .architectures import MAKERS
from .test_architectures import each, pair_of

GROUPED = {"gemma3", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3"}  # whose layers are replaced
SEVERAL = [name for name in MAKERS if name != "phi3-longrope"]  # read again when the factors change


def of_fixed_shapes(model: PreTrainedModel) -> CausalLM:
    """A model as it is on a GPU, but for the graphs."""
    found = CausalLM(model, graphs="on")
    found.lean, found.packed, found.static, found.replaces_layers = None, model, True, True
    return found


def operations(seed: int) -> Iterator[tuple[str, Any]]:
    """Texts that join and leave, chains and trees, roll-backs and kept paths, and growth beyond the buffers."""
    rng = random.Random(seed)
    lengths: dict[int, int] = {}
    for turn in range(24):
        if not lengths or (len(lengths) < 4 and rng.random() < 0.3):
            yield "add", (turn, rng.choice([4, 30]))
            lengths[turn] = rng.randrange(1, 40)
            yield "read", [Read(turn, [rng.randrange(1, 60) for _ in range(lengths[turn])])]
        chosen = rng.sample(sorted(lengths), rng.randrange(1, len(lengths) + 1))
        reads = []
        for text in chosen:
            parents = [rng.randrange(-1, i) for i in range(rng.randrange(1, 9))]
            trunk = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 3))]
            tree = rng.random() < 0.5
            mask = TreeMask.of_parents(lengths[text] + len(trunk), parents) if tree else None
            tokens = [*trunk, *(rng.randrange(1, 60) for _ in parents)]
            reads.append(Read(text, tokens, rng.randrange(1, len(tokens) + 1), mask))
        yield "read", reads
        for read in reads:
            kept = lengths[read.text] + len(read.tokens) - (0 if read.tree is None else len(read.tree.above))
            if read.tree is None:
                kept = rng.randrange(lengths[read.text] + 1, kept + 1)
                yield "crop", (read.text, kept)
            else:
                path = rng.choice(read.tree.paths(kept))
                yield "keep", (read.text, kept, path)
                kept += len(path)
            lengths[read.text] = kept
        if len(lengths) > 1 and rng.random() < 0.2:
            yield "remove", (text := rng.choice(sorted(lengths)),)
            del lengths[text]


@pytest.mark.parametrize("seed", [0, 1])
@each(SEVERAL)
@torch.inference_mode()
def test_results_are_those_of_other_forwards(name: str, seed: int) -> None:
    static, plain = of_fixed_shapes(pair_of(name)[0]), CausalLM(pair_of(name)[0], graphs="off")
    if not static.ragged:
        pytest.skip("its texts do not share a forward")
    caches = static.new_cache(), plain.new_cache()
    read = 0
    for what, arguments in operations(seed):
        if what == "read":
            found, expected = (model.forward(c, arguments) for model, c in zip((static, plain), caches, strict=True))
            for one, other in zip(found, expected, strict=True):
                given = other.isfinite()
                torch.testing.assert_close(one[given], other[given], rtol=1e-3, atol=1e-3)
            read += 1
            continue
        for own in caches:
            {"add": own.add, "crop": own.crop_text, "keep": own.keep, "remove": own.remove}[what](*arguments)
    assert static.fixed is not None or name not in GROUPED
    forwards = caches[0].forwards.values()
    assert read > len(forwards) > 2
    assert all(isinstance(forward, StaticForward) for forward in forwards)


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
    tokens = placed(plan, reads, cache)
    masks = layer_masks(types, tokens, torch.arange(plan.width))
    for row, own in paths.items():
        for place, path in enumerate(own, plan.new - len(own)):
            last = len(path) - 1
            assert tokens[row, place, 1] == last
            expected = {
                FULL: path,
                SLIDING: path[max(0, last - window + 1) :],
                CHUNKED: [column for position, column in enumerate(path) if position // chunk == last // chunk],
            }
            for name, columns in expected.items():
                assert masks[name][row, place].nonzero().squeeze(1).tolist() == sorted(columns), name
        for place in range(plan.new - len(own)):  # padding attends to something, or attention would be NaN
            assert all(mask[row, place].any() for mask in masks.values())
