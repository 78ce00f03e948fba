"""Continuous batching: requests of any threads join and leave in any order, with the texts of single requests."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.controllers.length import CumulativeConfidence, Fixed, Heuristic
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import Request
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import RandomSource
from specpilot.models import CausalLM, RaggedKVCache, Read, language_model
from specpilot.models.forwards import FixedShapes
from torch import Tensor

from ..helpers.clock import time_forwards
from ..helpers.drafts import Sometimes
from ..helpers.thoroughness import examples
from ..helpers.tiny import byte_tokenizer, make

GREEDY = SamplingParams(0.0)
PROMPTS = [torch.randint(64, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (3, 11, 1, 7, 20, 5)]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])  # the lean forward, and transformers' own
@examples(5, 15)
@given(data=st.data())
def test_any_order_of_joining_gives_the_texts_made_alone(architecture: str, data: st.DataObject) -> None:
    """Chains, trees and no drafts, of several samplings, share the rounds of one target."""
    target, draft = make(architecture), make(architecture, layers=1)
    decoder = SpeculativeDecoder(target, draft, length=Fixed(3))
    engine = decoder.scheduler.engine
    decoder.scheduler.max_running = data.draw(st.integers(1, 5))
    submitted: list[tuple[Request, dict[str, Any]]] = []
    for seed in range(data.draw(st.integers(2, 9))):
        kind: dict[str, Any] = {
            "prompt": data.draw(st.sampled_from(PROMPTS)),
            "sampling": data.draw(st.sampled_from([SamplingParams(0.0), SamplingParams(1.0, 8), SamplingParams(0.8)])),
            "budget": data.draw(st.integers(1, 24)),
            "setup": decoder.setup_for(
                length=data.draw(st.sampled_from([None, Fixed(0), Heuristic(2), CumulativeConfidence(0.2)])),
                verifier=data.draw(st.sampled_from([None, "block"])),
            ),
            "seed": seed,
        }
        request = request_of(decoder, kind)
        decoder.scheduler.submit([request])
        submitted.append((request, kind))
        for _ in range(data.draw(st.integers(0, 3))):
            decoder.scheduler.step()
            assert len(decoder.scheduler.running) <= decoder.scheduler.max_running
    while not all(request.finished for request, _ in submitted):
        decoder.scheduler.step()
    decoder.scheduler.step()
    assert not engine.cache.texts
    assert engine.cache.n_rows == engine.cache.n_columns == 0
    for request, kind in submitted:
        single = request_of(decoder, kind)
        decoder.scheduler.run([single])
        assert request.output.tokens == single.output.tokens
        assert request.output.rounds == single.output.rounds


def request_of(decoder: SpeculativeDecoder, kind: dict[str, Any]) -> Request:
    rng = RandomSource(kind["seed"])
    return decoder.new_request(kind["prompt"], kind["sampling"], kind["budget"], rng, setup=kind["setup"])


def call(decoder: SpeculativeDecoder, seed: int) -> list[list[int]]:
    """Return the tokens of one or more texts, by one of four methods of the decoder."""
    prompt, streamed = PROMPTS[seed % 6], list[int]()
    match seed % 4:
        case 0:
            return [decoder.generate(prompt, max_new_tokens=20, seed=seed).tokens]
        case 1:
            return [o.tokens for o in decoder.generate(PROMPTS[:3], max_new_tokens=12, seed=seed, temperature=0.7)]
        case 2:
            return [o.tokens for o in decoder.generate(prompt, n=2, max_new_tokens=15, seed=seed, verifier="block")]
    decoder.generate(prompt, max_new_tokens=18, seed=seed, length=5, on_tokens=streamed.extend)
    return [streamed]


@pytest.mark.parametrize(
    ("architecture", "requests"), [("llama", 3), ("gpt2", 1), pytest.param("t5", 1, marks=pytest.mark.slow)]
)
def test_sixteen_threads_of_several_requests_each(architecture: str, requests: int) -> None:
    decoder = SpeculativeDecoder(make(architecture), make(architecture, layers=1), length=Fixed(3))
    expected = [call(decoder, seed) for seed in range(16 * requests)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(partial(call, decoder), range(16 * requests))) == expected
    assert not decoder.scheduler.running


def test_a_stream_that_is_given_up_makes_room() -> None:
    decoder = SpeculativeDecoder(make(vocab=257), None, byte_tokenizer(), max_running=1)
    expected = decoder.generate("two", max_new_tokens=5, seed=1).tokens
    stream = decoder.stream("one", max_new_tokens=100, seed=1)
    next(stream)
    assert len(decoder.scheduler.running) == 1
    stream.close()
    assert not decoder.scheduler.running
    assert decoder.generate("two", max_new_tokens=5, seed=1).tokens == expected
    for seed in range(8):  # some end within a character
        options: dict[str, Any] = {"max_new_tokens": 16, "seed": seed}
        assert "".join(decoder.stream("two", **options)) == decoder.generate("two", **options).text
    unused = decoder.stream("three", max_new_tokens=5)
    del unused
    assert not decoder.scheduler.waiting


def test_as_finished() -> None:
    """Short texts do not wait for a long text before them. Unfinished texts are cancelled at the end."""
    decoder = SpeculativeDecoder(make(), None, max_running=2)
    requests = [
        decoder.new_request([1], GREEDY, budget, RandomSource(0), stop_tokens=frozenset())
        for budget in (90, *range(1, 21))
    ]
    finished = decoder.scheduler.as_finished(requests)
    assert [next(finished) for _ in range(10)] == requests[1:11]
    assert not requests[0].finished
    finished.close()
    assert not decoder.scheduler.running
    assert [len(request.output.tokens) for request in (requests[10], requests[-1])] == [10, 0]


def test_a_forward_that_breaks_fails_what_was_running_and_nothing_after() -> None:
    target, broken = CausalLM(make()), False
    forward = target.forward

    def fragile(cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        if broken and len(reads[0].tokens) > 1:
            raise RuntimeError("out of memory")
        return forward(cache, reads)

    target.forward = fragile  # type: ignore[method-assign]
    decoder = SpeculativeDecoder(target, make(layers=1), length=Fixed(2))
    expected = decoder.generate(PROMPTS, max_new_tokens=12, seed=1)
    running = decoder.new_request(PROMPTS[0], SamplingParams(), 50, RandomSource(0))
    decoder.scheduler.submit([running])
    decoder.scheduler.step()
    broken = True
    with pytest.raises(RuntimeError, match="out of memory"):
        decoder.generate(PROMPTS[1], max_new_tokens=12)
    assert isinstance(running.error, RuntimeError)
    (arm,) = decoder.setup.arms
    for cache in (decoder.scheduler.engine.cache, arm.drafter.cache):  # type: ignore[attr-defined]
        assert not cache.texts  # nothing is left of what was running
    broken = False
    again = decoder.generate(PROMPTS, max_new_tokens=12, seed=1)
    assert [row.tokens for row in again] == [row.tokens for row in expected]


def test_a_thread_that_runs_rounds_gathers_no_news_of_them() -> None:
    """Otherwise the thread would have to read all notifications when it later waits for another thread."""
    decoder = SpeculativeDecoder(make(), None)
    step, sizes = decoder.scheduler.engine.step, list[int]()

    def observed(requests: Sequence[Request]) -> None:
        sizes.extend(news.qsize() for listener in decoder.scheduler._listeners if (news := listener()) is not None)
        step(requests)

    decoder.scheduler.engine.step = observed  # type: ignore[method-assign]
    decoder.generate(PROMPTS[0], max_new_tokens=12, temperature=0)
    assert len(sizes) > 3
    assert max(sizes) <= 1


def test_a_draft_reads_a_prompt_when_it_first_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft reads the prompt in the third round. Its time includes the prefill, so no cost is learned from it."""
    target, draft, reads = CausalLM(make()), CausalLM(make(layers=1)), list[object]()
    monkeypatch.setattr(Sometimes, "timed", lambda self, *round: reads.append(round))
    monkeypatch.setattr(Sometimes, "untimed", lambda self: reads.append(None))
    decoder = SpeculativeDecoder(target, draft, length=Sometimes())
    time_forwards(monkeypatch, lambda model, longest: 1.0 if model is target else 10.0 if longest > 3 else 0.25)
    stats = decoder.generate(PROMPTS[4], max_new_tokens=6, temperature=0).stats
    assert (stats.prefill_seconds, stats.n_draft_forwards) == (11.0, 2)
    assert reads[:3] == [(0, 0, 1.0), (0, 0, 1.0), None]


def test_long_batches_close_their_holes() -> None:
    """With hundreds of tokens per row, the cache is copied often and has only the columns of the longest row."""
    target = make(context=512)
    decoder = SpeculativeDecoder(target, make(layers=1, context=512), length=Fixed(4))
    together = decoder.generate(PROMPTS, max_new_tokens=300, temperature=1.0, seed=1)
    for prompt, row in zip(PROMPTS, together, strict=True):
        assert row.tokens == decoder.generate(prompt, max_new_tokens=300, temperature=1.0, seed=row.seed).tokens


# Memory


def free(decoder: SpeculativeDecoder, size: int) -> list[int]:
    """Let ``size`` bytes be free besides the buffers; return a list that gets the requests of each round."""
    engine, running = decoder.scheduler.engine, list[int]()
    drafter = decoder.setup.arms[0].drafter
    caches: list[Any] = [engine.cache, *([drafter.cache] if hasattr(drafter, "cache") else [])]
    step = engine.step

    def observed(requests: Sequence[Request]) -> None:
        running.append(len(requests))
        step(requests)

    engine.free_bytes = lambda: size - sum(map(buffer_bytes, caches))  # type: ignore[assignment]
    engine.step = observed  # type: ignore[method-assign]
    return running


def buffer_bytes(cache: RaggedKVCache) -> int:
    buffers = [buffer for layer in cache.ragged_layers for buffer in (layer.keys, layer.values) if buffer is not None]
    return sum(buffer.nbytes for buffer in buffers)


@pytest.mark.parametrize("static", [True, False])
def test_growth_is_what_the_buffers_grow_by(static: bool) -> None:
    """The growth leaves out the buffers of one layer, which exist twice while they are copied."""
    model = language_model(make("gpt2"))
    assert isinstance(model, CausalLM)
    if static:
        model.strategy = FixedShapes(model, "a test asks for it", None)
    cache = model.new_cache()
    for text, tokens in enumerate((20, 10, 500)):
        before = buffer_bytes(cache)
        growth = cache.growth([tokens])
        model.begin(cache, text, [1, 2, 3], tokens - 3)
        with torch.inference_mode():
            model.forward(cache, [Read(text, [1, 2, 3])])
        assert growth == buffer_bytes(cache) - before + before // len(cache.ragged_layers)


@pytest.mark.parametrize("drafted", [True, False])
def test_requests_wait_for_memory(drafted: bool) -> None:
    """The texts are those of a decoder with enough memory, and no round has more than fit."""
    decoders = [SpeculativeDecoder(make("gpt2"), make("gpt2", layers=1) if drafted else None) for _ in range(2)]
    kind = {"sampling": GREEDY, "budget": 20, "seed": 0, "setup": None}
    requests = [request_of(decoders[0], kind | {"prompt": prompt}) for prompt in PROMPTS]
    engine = decoders[0].scheduler.engine
    two = engine.growth(sorted(requests, key=lambda request: -len(request.prompt))[:2])
    running = free(decoders[0], 2 * two)
    decoders[0].scheduler.run(requests)
    assert 1 < max(running) < len(PROMPTS)
    expected = decoders[1].generate(PROMPTS, max_new_tokens=20, temperature=0)
    assert [request.output.tokens for request in requests] == [output.tokens for output in expected]


def test_a_request_without_memory_fails_alone() -> None:
    decoder = SpeculativeDecoder(make("gpt2"), make("gpt2", layers=1))
    budgets = {0: 8, 1: 90, 2: 8}
    requests = [
        request_of(decoder, {"prompt": PROMPTS[i], "sampling": GREEDY, "budget": budget, "seed": 0, "setup": None})
        for i, budget in budgets.items()
    ]
    free(decoder, decoder.scheduler.engine.growth([requests[1]]) - 1)
    decoder.scheduler.submit(requests)
    while not all(request.finished for request in requests):
        decoder.scheduler.step()
    assert [type(request.error) for request in requests] == [type(None), InputError, type(None)]
    assert "max_new_tokens=90" in str(requests[1].error)


def test_a_device_without_memory_is_named() -> None:
    decoder = SpeculativeDecoder(make("llama"), None, max_running=7)
    engine = decoder.scheduler.engine
    forward = engine.target.forward

    def failing(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    engine.target.forward = failing  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"max_running=7: 6 texts .* memory of cpu"):
        decoder.generate(PROMPTS, max_new_tokens=3)
    engine.target.forward = forward  # type: ignore[method-assign]
    assert len(decoder.generate(PROMPTS[0], max_new_tokens=3).tokens) == 3


def test_texts_have_at_most_so_many_columns() -> None:
    decoder = SpeculativeDecoder(make("llama"), make("llama", layers=1), max_columns=16)
    unlimited = SpeculativeDecoder(make("llama"), make("llama", layers=1))
    whole = unlimited.generate(PROMPTS[1], max_new_tokens=20, temperature=0)
    output = decoder.generate(PROMPTS[1], max_new_tokens=20, temperature=0)
    assert (output.finish_reason, len(output.prompt_tokens) + len(output.tokens)) == ("context", 16)
    assert output.tokens == whole.tokens[: len(output.tokens)]
    with pytest.raises(InputError, match=r"prompt: 20 tokens.*max_columns is 16"):
        decoder.generate(PROMPTS[4], max_new_tokens=1)
