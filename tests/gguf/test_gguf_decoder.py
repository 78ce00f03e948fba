"""GGUF pairs in the decoder: the text of the same pair in transformers, and llama.cpp's own greedy text."""

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from specpilot.common.errors import InputError
from specpilot.controllers.length import Fixed
from specpilot.controllers.router import SingleArm
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.beams import Beams
from specpilot.infer.models.gguf_model import GgufModel
from specpilot.infer.models.llama_context import library

from .files import write_gguf  # skips where the extra is missing

PROMPT = "How do I list files by size?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped pair as GGUF files."""
    folder = tmp_path_factory.mktemp("gguf")
    for name in ("tiny", "tiny-draft", "tiny-draft-math"):
        write_gguf(name, folder / f"{name}.gguf", "f32")
    write_gguf("tiny", folder / "tiny-bf16.gguf", "bf16")
    write_gguf("tiny-draft", folder / "tiny-draft-q8_0.gguf", "q8_0")
    return folder


def decoder(folder: Path, **options: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(folder / "tiny.gguf", **{"draft": folder / "tiny-draft.gguf"} | options)


WAYS: list[dict[str, Any]] = [
    {"length": 4},
    {"length": "cumulative-confidence:0.4"},
    {"verifier": "mcss", "tree": "3x2x1"},
    {"verifier": "k-seq", "tree": "4x1x1"},
    {"verifier": "mtad:0.5", "beams": Beams(4)},
    {"verifier": "mtjd", "length": 3, "draft": None},
    {"draft": "ngram"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_the_text_is_that_of_transformers(folder: Path, way: dict[str, Any]) -> None:
    """The same weights in float32, the same draws: the same tokens, alone and in a list."""
    ours, theirs = decoder(folder, **way), SpeculativeDecoder.from_pretrained("tiny", **{"draft": "tiny-draft"} | way)
    prompts = [PROMPT, "Write a SQL query that counts users", "2 + 2"]
    settings = {"max_new_tokens": 40, "top_k": 20, "chat": True, "seed": 3}
    for prompt in (PROMPT, prompts):
        found, expected = (one.generate(prompt, **settings) for one in (ours, theirs))
        if isinstance(prompt, str):
            found, expected = [found], [expected]
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        assert [one.text for one in found] == [one.text for one in expected]
        assert [one.rounds for one in found] == [one.rounds for one in expected]


def greedy_loop(model: GgufModel, prompt: Sequence[int], budget: int, stop: frozenset[int]) -> list[int]:
    """llama.cpp's own greedy text, as its examples write it: its decode, its sampler, keys and values in float32."""
    llama = library()
    context = model.new_context(1024, 1)
    llama.llama_set_embeddings(context.pointer, False)
    sampler = llama.llama_sampler_init_greedy()
    tokens, written = list(prompt), list[int]()
    try:
        while True:
            array = (ctypes.c_int32 * len(tokens))(*tokens)
            assert llama.llama_decode(context.pointer, llama.llama_batch_get_one(array, len(tokens))) == 0
            tokens = [llama.llama_sampler_sample(sampler, context.pointer, -1)]
            written += tokens
            if len(written) == budget or written[-1] in stop:
                return written
    finally:
        llama.llama_sampler_free(sampler)


@pytest.mark.parametrize("target", ["tiny.gguf", "tiny-bf16.gguf"])
def test_greedy_text_is_that_of_llama_cpp(folder: Path, target: str) -> None:
    """Of 60 prompts: token by token whatever the weights, and with drafts where no product rounds to bfloat16."""
    prompts = load_prompts("builtin", split="test", limit=60)
    assert len(prompts) == 60
    options: list[dict[str, Any]] = [{"draft": None}]
    if target == "tiny.gguf":
        draft = folder / "tiny-draft.gguf"
        options += [{"draft": draft, "length": 5}, {"draft": draft, "tree": "2x2x1", "verifier": "spec-infer"}]
    decoders = [SpeculativeDecoder.from_pretrained(folder / target, **own) for own in options]
    model = decoders[0].target.model
    assert isinstance(model, GgufModel)
    ids = [decoders[0]._encode(prompt.prompt, True, None) for prompt in prompts]
    expected = [greedy_loop(model, one, 40, decoders[0].stop_tokens) for one in ids]
    for one in decoders:
        found = [one.generate(prompt, max_new_tokens=40, temperature=0).tokens for prompt in ids]
        assert sum(a == b for a, b in zip(found, expected, strict=True)) == 60


def test_two_decoders_and_several_threads(folder: Path) -> None:
    decoders = decoder(folder, length=3), decoder(folder, tree="2x2", verifier="mcss")
    jobs = [(one, seed) for one in decoders for seed in range(3)]

    def run(job: tuple[SpeculativeDecoder, int]) -> list[int]:
        return list(job[0].generate(PROMPT, seed=job[1], max_new_tokens=30, chat=True).tokens)

    alone = [run(job) for job in jobs]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(run, jobs)) == alone


@pytest.mark.parametrize(
    ("target", "draft"),
    [("tiny", "tiny-draft.gguf"), ("tiny.gguf", "tiny-draft"), ("tiny.gguf", "tiny-draft-q8_0.gguf")],
)
def test_mixed_pairs(folder: Path, target: str, draft: str) -> None:
    names = [folder / name if name.endswith(".gguf") else name for name in (target, draft)]
    greedy = {"temperature": 0, "max_new_tokens": 40, "chat": True}
    expected = SpeculativeDecoder.from_pretrained("tiny").generate(PROMPT, **greedy).tokens
    found = SpeculativeDecoder.from_pretrained(*names, length=4).generate(PROMPT, **greedy)
    assert found.tokens == expected
    assert found.stats.n_accepted > 0


@pytest.mark.parametrize(("length", "options"), [("tiny-head", {}), ("tiny-lag-free", {"cost": 0.2})])
def test_controllers_of_the_transformers_pair_steer(folder: Path, length: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="but another target and draft is given"):
        decoder(folder, length=length, **options)
    with pytest.warns(UserWarning, match="trained for target tiny and draft tiny-draft, but another target and draft"):
        ours = decoder(folder, length=length, pair_check="tokenizer", **options)
    theirs = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=length, **options)
    settings = {"max_new_tokens": 40, "chat": True}
    assert ours.generate(PROMPT, **settings).rounds == theirs.generate(PROMPT, **settings).rounds
    if options:
        with pytest.warns(UserWarning, match="another target and draft"):
            adaptive = decoder(folder, length=length, cost="auto", pair_check="tokenizer")
        assert adaptive.generate(PROMPT, max_new_tokens=20, chat=True).tokens


def test_routers_choose_between_gguf_drafts(folder: Path) -> None:
    arms = [str(folder / "tiny-draft.gguf"), str(folder / "tiny-draft-math.gguf"), "ngram", "autoregressive"]
    greedy = {"temperature": 0, "max_new_tokens": 30, "chat": True}
    expected = decoder(folder, length=Fixed(2)).generate(PROMPT, **greedy).tokens
    for index in range(len(arms)):
        one = decoder(folder, draft=arms, router=SingleArm(index, len(arms)), length=3).generate(PROMPT, **greedy)
        assert (one.tokens, one.arm) == (expected, index)
    with pytest.raises(InputError, match=r"arm 'exit:2': llama is run by llama\.cpp, which has no early exits"):
        decoder(folder, draft=["exit:2", "autoregressive"], router=SingleArm(0, 2), length=3)


def test_context_and_stop_tokens(folder: Path) -> None:
    ours = decoder(folder, length=4)
    assert ours.stop_tokens == frozenset([1])
    assert ours.target.context == 512
    with pytest.raises(InputError, match="600 tokens, but the context holds 512"):
        ours.generate([5] * 600)
    long = ours.generate([5] * 500, max_new_tokens=100, temperature=0)
    assert len(long.tokens) <= 12
