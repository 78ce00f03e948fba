"""The decoder on tiny random models: greedy texts of transformers, counters, ends of texts, seeds, streaming."""

import warnings
from collections import Counter
from typing import Any

import pytest
from specpilot.common.errors import InputError
from specpilot.controllers.length import Fixed, Oracle
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.base import device_sampling, draw_ahead
from specpilot.infer.drafters.tree import LevelDrafter
from specpilot.infer.random_source import RandomSource, SharedNoise
from specpilot.models import CausalLM, Read, language_model
from tokenizers.processors import TemplateProcessing

from ..helpers.drafts import options_of
from ..helpers.greedy import transformers_greedy
from ..helpers.tiny import ARCHITECTURES, byte_tokenizer, make

PROMPT = [5, 9, 2, 44, 17, 3, 30]


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "mpt", "t5"])
@pytest.mark.parametrize("options", [{"tree": (2, 2, 1), "verifier": "spec-infer"}, {"length": Fixed(5)}])
def test_the_targets_own_drafts_are_accepted_whole(architecture: str, options: dict[str, Any]) -> None:
    """If p = q, a whole path is always accepted, and both caches then hold the right tokens."""
    target = make(architecture)
    output = SpeculativeDecoder(target, target, **options).generate(PROMPT, max_new_tokens=25, top_k=8, seed=3)
    each = len(options.get("tree", range(5))) + 1
    assert output.stats.n_target_forwards == 1 + 24 / each
    assert [len(r.emitted) for r in output.rounds] == [1] + [each] * (24 // each)


@pytest.mark.parametrize("way", ["3", "cumulative confidence", "mcss 3x2x1", "auto"])
def test_counters_balance(way: str) -> None:
    decoder = SpeculativeDecoder(make(), make(layers=1), **options_of(way))
    for seed in range(5):
        output = decoder.generate(PROMPT, max_new_tokens=40, seed=seed)
        stats = output.stats
        assert stats.n_generated == len(output.tokens) == 40
        assert stats.n_target_forwards == len(output.rounds)
        assert stats.n_drafted == stats.n_accepted + stats.n_discarded
        assert stats.n_verified_tokens == stats.n_drafted + stats.n_target_forwards - 1
        if decoder.plan.drafts_chains:
            assert stats.n_draft_forwards == stats.n_drafted
            assert stats.n_draft_forwards + stats.n_target_forwards == stats.n_generated + stats.n_discarded
        assert stats.n_draft_forwards <= stats.n_drafted
        assert [t for r in output.rounds for t in r.emitted] == output.tokens
        for r in output.rounds:
            assert r.emitted[: r.accepted] == [r.drafted[node] for node in r.path][: len(r.emitted)]


def test_ends_inside_an_accepted_block() -> None:
    target = make()
    free = SpeculativeDecoder(target, target, length=Fixed(6)).generate(PROMPT, max_new_tokens=30, temperature=0)
    for position in (0, 3, 10):
        stop = free.tokens[position]
        first = free.tokens.index(stop)
        target.generation_config.eos_token_id = [stop, 63]
        output = SpeculativeDecoder(target, target, length=Fixed(6)).generate(PROMPT, max_new_tokens=30, temperature=0)
        assert output.tokens == free.tokens[: first + 1]
        assert output.finish_reason == "eos"
        assert output.stats.n_generated == first + 1
        assert [t for r in output.rounds for t in r.emitted] == output.tokens


def test_optimal_transport_is_refused_before_the_first_token() -> None:
    decoder = SpeculativeDecoder(make(), make(layers=1), verifier="otm", tree=(4, 1))
    with pytest.raises(InputError, match="verifier='otm' with 4 proposals over 50 tokens: too large a linear program"):
        decoder.generate(PROMPT, top_k=50)
    assert decoder.generate(PROMPT, top_k=8, max_new_tokens=5).tokens


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_oracle_is_never_rejected_and_drafts_all_it_can(architecture: str) -> None:
    target, draft = make(architecture), make(architecture, layers=1, seed=3)
    best = SpeculativeDecoder(target, draft, length=Oracle())
    for prompt in ([1], PROMPT, [7, 7, 7]):
        output = best.generate(prompt, max_new_tokens=40, temperature=0)
        assert output.tokens == transformers_greedy(target, prompt)
        assert output.stats.n_discarded == 0
        for k in (1, 4, 8):
            rival = SpeculativeDecoder(target, draft, length=Fixed(k)).generate(
                prompt, max_new_tokens=40, temperature=0
            )
            assert output.stats.n_target_forwards <= rival.stats.n_target_forwards
        rows = best.generate([prompt, prompt], max_new_tokens=40, temperature=0)
        assert [row.rounds for row in rows] == [output.rounds] * 2
    with pytest.raises(InputError, match=r"length='oracle':"):
        best.generate(PROMPT)


@pytest.mark.parametrize("architecture", ["llama", "mpt"])
def test_budgets_and_the_context_end_each_row(architecture: str) -> None:
    sizes = {"context": 32}
    decoder = SpeculativeDecoder(make(architecture, **sizes), make(architecture, layers=1, **sizes), length=Fixed(8))
    for budget in (1, 2, 3, 7, 20):
        short, long = decoder.generate([[1, 2], [*range(25)]], max_new_tokens=budget)
        assert (len(short.tokens), short.finish_reason) == (budget, "length")
        assert (len(long.tokens), long.finish_reason) == ((7, "context") if budget > 7 else (budget, "length"))
    with pytest.warns(UserWarning, match="^max_new_tokens: 1 of 2 texts .* context of 32 tokens"):
        decoder.generate([[1, 2], [*range(25)]], max_new_tokens=20)
    with warnings.catch_warnings(action="error"):
        decoder.generate([[1, 2], [*range(25)]], max_new_tokens=7)
    with pytest.raises(InputError, match="prompt: 32 tokens, but the context holds 32"):
        decoder.generate([1] * 32)


@pytest.mark.parametrize("options", [{"length": Fixed(3)}, {"tree": (2, 2), "verifier": "spec-infer"}])
def test_a_prompt_is_encoded_once(options: dict[str, Any]) -> None:
    """The keys and values of the decoder's cross-attention are also computed only once."""
    decoder = SpeculativeDecoder(make("t5"), make("t5", layers=1), **options)
    calls: Counter[tuple[str, str]] = Counter()
    for name, model in (("target", decoder.target.model), ("draft", decoder.drafts[0].model)):
        for part in (model.encoder, *(block.layer[1].EncDecAttention.k for block in model.decoder.block)):
            part.register_forward_hook(lambda module, *unused, name=name: calls.update([(name, type(module).__name__)]))
    for texts in (1, 2):
        output = decoder.generate(PROMPT, max_new_tokens=20, seed=texts)
        assert output.stats.n_target_forwards > 3
        assert calls == {
            ("target", "T5Stack"): texts, ("target", "Linear"): 2 * texts,
            ("draft", "T5Stack"): texts, ("draft", "Linear"): texts,
        }  # fmt: skip


def test_an_encoder_alone_reads_the_end_token_that_the_tokenizer_appends() -> None:
    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", end)]
    )
    letter, _ = tokenizer("a")["input_ids"]
    for architecture, expected in (("t5", [letter, end]), ("llama", [letter])):
        decoder = SpeculativeDecoder(make(architecture, vocab=257), None, tokenizer)
        assert decoder.generate("a", chat=False, max_new_tokens=1).prompt_tokens == expected


def test_encoder_decoders_that_are_refused() -> None:
    t5 = make("t5")
    with pytest.raises(InputError, match="t5: an encoder-decoder model; a causal"):
        CausalLM(t5)
    t5.generation_config.decoder_start_token_id = None
    with pytest.raises(InputError, match="decoder_start_token_id is not set"):
        SpeculativeDecoder(t5, None)


def test_drafts_that_are_no_smaller_than_the_target_are_named() -> None:
    large, small = make(), make(layers=1)
    with warnings.catch_warnings(action="error"):
        SpeculativeDecoder(large, small)
    with pytest.warns(UserWarning, match="draft=.*; swap target and draft"):
        SpeculativeDecoder(small, large)
    with pytest.warns(UserWarning, match="draft=.*; give a smaller draft"):
        SpeculativeDecoder(large, large)


def test_trees_of_finished_requests_are_released() -> None:
    decoder = SpeculativeDecoder(make(), make(layers=1), tree=(2, 2), verifier="spec-infer")
    decoder.generate([PROMPT, PROMPT[:3]], max_new_tokens=5, seed=1)
    (arm,) = decoder.setup.arms
    assert isinstance(arm.drafter, LevelDrafter)
    assert arm.drafter.trees == {}


def test_random_numbers_of_tokens_that_a_device_does_not_draw_go_back() -> None:
    """A model on the host draws no tokens before they are read. Shared noise needs no distributions of the draft."""
    model = language_model(make())
    assert isinstance(model, CausalLM)
    decoder = SpeculativeDecoder(model, None)
    for source, shared in ((RandomSource(3), False), (SharedNoise(3), True)):
        request = decoder.new_request([1, 2], SamplingParams(1.0), 5, source)
        settings = device_sampling(request, request.sampling, 64)
        assert (settings.distributions, settings.shared) == (not shared, shared)
        drawn, numbers = draw_ahead(model, model.new_cache(), [request], [Read(request, [1, 2])], [3], settings, 3)
        assert (drawn, len(numbers[0])) == (None, 3)
        if not shared:
            assert [request.rng.uniform() for _ in range(3)] == numbers[0]
