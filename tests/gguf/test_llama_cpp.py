"""llama.cpp behind the model protocol, beside the same weights in transformers: chunks, roll-backs, branches, lists."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.data_gen.draft_states import at_drafted_tokens
from specpilot.data_gen.kinds import Text
from specpilot.models import CausalLM, LlamaCpp, Read, TextCache, TreeMask, language_model, llama_cpp
from specpilot.models.gguf_model import GgufModel
from specpilot.models.loading.names import load_model
from torch import Tensor

from ..helpers.gguf import random_llama

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf): run make test-gguf")

Pair = tuple[LlamaCpp, CausalLM]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return a random Llama, loaded by llama.cpp and by transformers."""
    path, place = random_llama(tmp_path_factory.mktemp("gguf"))
    gguf_model, transformers_model = language_model(GgufModel(path)), language_model(load_model(place))
    assert isinstance(gguf_model, LlamaCpp)
    assert isinstance(transformers_model, CausalLM)
    return gguf_model, transformers_model


FEW = 4  # sequences: three texts and a branch
MOST = 256  # sequences of a context that llama.cpp allows
EVERY = pytest.mark.parametrize("most", [MOST, FEW])


class Both:
    """Calls both models with the same arguments, and checks that their results agree."""

    def __init__(self, pair: Pair, most: int = MOST) -> None:
        self.pair, self.most = pair, most
        self.caches: list[TextCache] = [model.new_cache() for model in pair]

    def read(self, reads: Sequence[Read]) -> None:
        with patch.multiple(llama_cpp, SEQUENCES=(1, min(3, self.most), self.most), MAX_SEQUENCES=self.most):
            results = [model.forward(cache, reads) for model, cache in zip(self.pair, self.caches, strict=True)]
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)

    def __getattr__(self, name: str) -> object:
        def call(*arguments: object) -> list[object]:
            return [getattr(cache, name)(*arguments) for cache in self.caches]

        return call


@torch.inference_mode()
def test_contexts_grow_and_long_prompts_are_read_in_parts(pair: Pair) -> None:
    models = Both(pair)
    models.add(0, 4)
    models.add(1, 4)
    for n in (600, 1, 700, 2):
        models.read([Read(0, [token % 251 for token in range(n)], 1), Read(1, [n % 7] * (n // 3 + 1), 1)])
    models.read([Read(0, [5], 1)])


@st.composite
def trees(draw: st.DrawFn, nodes: int = 8) -> list[int]:
    count = draw(st.integers(1, nodes))
    return [draw(st.integers(-1, node - 1)) for node in range(count)]


@EVERY
@settings(max_examples=25)
@given(data=st.data())
@torch.inference_mode()
def test_trees_of_several_texts(pair: Pair, most: int, data: st.DataObject) -> None:
    """Rounds of the engine: trees are read at once, accepted paths are kept, and several texts continue together."""
    models = Both(pair, most)
    texts = {name: [3 + name, 1, 4] for name in range(data.draw(st.integers(1, 3)))}
    for name in texts:
        models.add(name, 30)
    models.read([Read(name, prompt) for name, prompt in texts.items()])
    for turn in range(3):
        reads, parents = [], {}
        for name, text in texts.items():
            length = min(models.length(name))  # a cache may have forgotten the end of what was kept
            models.crop_text(name, length)
            text.append(turn)
            parents[name] = data.draw(trees())
            new = [20 * name + turn + node for node in range(len(parents[name]))]
            shape = TreeMask.from_parents(len(text), parents[name])
            reads.append(Read(name, [*text[length:], *new], len(new) + 1, shape))
        models.read(reads)
        for read in reads:
            path = data.draw(st.sampled_from([[], *paths_of(parents[read.text])]))
            start = len(texts[read.text])
            nodes = read.tokens[len(read.tokens) - len(parents[read.text]) :]
            models.keep(read.text, start, [start + node for node in path])
            assert start <= models.length(read.text)[0] <= models.length(read.text)[1] == start + len(path)
            texts[read.text] += [nodes[node] for node in path]
    models.remove(next(iter(texts)))


def paths_of(parents: list[int]) -> Iterator[list[int]]:
    for node in range(len(parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        yield path


@EVERY
@settings(max_examples=25)
@given(data=st.data())
@torch.inference_mode()
def test_trees_level_by_level(pair: Pair, most: int, data: st.DataObject) -> None:
    """Trees grow level by level: each level is read after the earlier levels, and a node may have several children."""
    models = Both(pair, most)
    for name in (0, 1):
        models.add(name, 40)
        models.read([Read(name, [7, name, 9])])
    paths: dict[int, list[list[int]]] = {0: [[]], 1: [[]]}
    for _ in range(3):
        reads = []
        for name, level in paths.items():
            count = data.draw(st.integers(1, 4))
            above = [data.draw(st.sampled_from(level)) for _ in range(count)]
            first = models.length(name)[0]
            reads.append(Read(name, [first + i for i in range(count)], count, TreeMask(3, above)))
            paths[name] = [[*ancestors, first + i] for i, ancestors in enumerate(above)]
        models.read(reads)
    for name, level in paths.items():
        models.keep(name, 3, data.draw(st.sampled_from(level)))
        models.crop_text(name, models.length(name)[0])
        models.read([Read(name, [40, 41], 2)])


@torch.inference_mode()
def test_branches_off_a_text(pair: Pair) -> None:
    length = 300
    tokens = [token * 7 % 251 for token in range(length)]
    text = Text("id", [1, 2, 3], tokens, list(range(length)), tokens[::-1], [0.5] * length, [0] * length)
    for actual, expected in zip(*(at_drafted_tokens(model, text) for model in pair), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_texts_join_and_leave(pair: Pair) -> None:
    models = Both(pair)
    for name in range(40):
        models.add(name, 20)
        models.read([Read(text, [text, name], 1) for text in range(max(0, name - 9), name + 1)])
        if name >= 9:
            models.remove(name - 9)
    models.clear()
    models.add("again", 10)
    models.read([Read("again", [1, 2, 3], 3)])


def test_more_texts_than_sequences(pair: Pair) -> None:
    cache = pair[0].new_cache()
    for name in range(llama_cpp.MAX_TEXTS):
        cache.add(name, 1)
    with pytest.raises(InputError, match="at most 192 texts at once"):
        cache.add("one more", 1)


@torch.inference_mode()
def test_results_are_the_callers_own(pair: Pair) -> None:
    """Results stay valid after the next forward and without the cache."""
    model, _ = pair
    cache = model.new_cache()
    cache.add(0, 9)
    first = model.forward(cache, [Read(0, [1, 2], 2)])
    before: list[Tensor] = [part.clone() for part in first]
    model.forward(cache, [Read(0, [3, 4], 2)])
    del cache
    assert all(torch.equal(part, old) for part, old in zip(first, before, strict=True))


def test_bfloat16_and_float16_keys(pair: Pair, tmp_path: Path) -> None:
    path = pair[0].model.file.path
    exact = pair[0]
    for dtype, tolerance in (("float16", 2e-2), ("bfloat16", 2e-1), ("auto", 2e-2)):
        model = LlamaCpp(GgufModel(path, dtype))
        results = []
        for each_model in (model, exact):
            cache = each_model.new_cache()
            cache.add(0, 9)
            results.append(each_model.forward(cache, [Read(0, [5, 6, 7, 8], 4)])[0])
        torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
        assert not torch.equal(*results)
