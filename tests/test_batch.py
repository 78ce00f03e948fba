"""Batches: every row is decoded as it is alone, whatever the others do."""

from __future__ import annotations

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.acceptance_head import AcceptanceHead
from specpilot.controllers.length import (
    AcceptanceLength,
    CumulativeConfidence,
    Fixed,
    HeadPredictor,
    Heuristic,
    LengthController,
    RateOptimal,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.models import CausalLM, Read

from .tiny import ALIBI, EACH, byte_tokenizer, make

PROMPTS = [torch.randint(64, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (3, 11, 1, 7, 7, 20)]


def lengths(size: int) -> list[LengthController]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = AcceptanceHead(size, depth=1)
    return [
        *(Fixed(0), Fixed(1), Fixed(5), CumulativeConfidence(0.2), Heuristic(2)),
        AcceptanceLength(HeadPredictor(head), 0.6),
        RateOptimal(HeadPredictor(head), CostModel(0.2, 1.0, 0.01)),
    ]


@pytest.mark.parametrize("architecture", EACH)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", range(7))
def test_rows_are_what_they_are_alone(architecture: str, temperature: float, rule: int) -> None:
    """Same tokens, same rounds, same counters; rows end at different times, by budget and by stop tokens."""
    draft = make(architecture, layers=1)
    length = lengths(CausalLM(draft).hidden_size)[rule]
    decoder = SpeculativeDecoder(make(architecture), draft, length=length)
    decoder.stop_tokens = frozenset(range(0, 64, 13))
    settings = {"max_new_tokens": 40, "temperature": temperature, "top_k": 8}
    together = decoder.generate(PROMPTS, seed=3, **settings)
    ends = set()
    for prompt, row in zip(PROMPTS, together, strict=True):
        alone = decoder.generate(prompt, seed=row.seed, **settings)
        assert row.tokens == alone.tokens
        assert row.rounds == alone.rounds
        assert row.finish_reason == alone.finish_reason
        for name in ("n_generated", "n_draft_forwards", "n_target_forwards", "n_discarded", "n_verified_tokens"):
            assert getattr(row.stats, name) == getattr(alone.stats, name)
        ends.add(len(row.tokens))
    assert len(ends) > 1 or temperature == 0


@pytest.mark.parametrize("architecture", ALIBI)
def test_rows_of_models_that_count_positions(architecture: str) -> None:
    decoder = SpeculativeDecoder(make(architecture), make(architecture, layers=1), length=Fixed(3))
    together = decoder.generate(PROMPTS, max_new_tokens=25, seed=3, top_k=8)
    for prompt, row in zip(PROMPTS, together, strict=True):
        assert row.rounds == decoder.generate(prompt, max_new_tokens=25, seed=row.seed, top_k=8).rounds


def test_long_batches_close_their_holes() -> None:
    """Hundreds of tokens a row: the cache is copied many times, and stays as narrow as the longest row needs."""
    target = make(context=512)
    decoder = SpeculativeDecoder(target, make(layers=1, context=512), length=Fixed(4))
    together = decoder.generate(PROMPTS, max_new_tokens=300, temperature=1.0, seed=1)
    for prompt, row in zip(PROMPTS, together, strict=True):
        assert row.tokens == decoder.generate(prompt, max_new_tokens=300, temperature=1.0, seed=row.seed).tokens


def test_block_verification_and_a_draft_with_fewer_embeddings() -> None:
    target, draft = make(vocab=64), make(vocab=50, layers=1)
    decoder = SpeculativeDecoder(target, draft, length=Fixed(3), verifier="block")
    together = decoder.generate(PROMPTS, max_new_tokens=30, seed=5)
    assert any(max(row.tokens) >= 50 for row in together)
    for prompt, row in zip(PROMPTS, together, strict=True):
        assert row.rounds == decoder.generate(prompt, max_new_tokens=30, seed=row.seed).rounds


def test_autoregressive_batches_and_texts() -> None:
    decoder = SpeculativeDecoder(make(vocab=257), None, byte_tokenizer())
    texts = ["one", "another one"]
    together = decoder.generate(texts, max_new_tokens=12, seed=0)
    assert [row.text for row in together] == [
        decoder.generate(text, max_new_tokens=12, seed=row.seed).text for text, row in zip(texts, together, strict=True)
    ]


def test_context_is_each_rows_own() -> None:
    decoder = SpeculativeDecoder(make(context=16), make(layers=1, context=16), length=Fixed(2))
    short, long = decoder.generate([[1, 2], list(range(14))], max_new_tokens=10, seed=0)
    assert (len(short.tokens), short.finish_reason) == (10, "length")
    assert (len(long.tokens), long.finish_reason) == (2, "context")


@pytest.mark.parametrize("architecture", EACH)
@torch.inference_mode()
def test_rows_join_are_cut_back_and_leave(architecture: str) -> None:
    """Texts of one cache, of several lengths, cut back, left by others and joined: each reads on as it stands."""
    model = CausalLM(make(architecture))
    cache = model.new_cache()
    for text in "abc":
        cache.add(text, 4)
    model.forward(cache, [Read("a", [1, 2, 3]), Read("b", [4]), Read("c", [9, 9])])
    model.forward(cache, [Read("a", [5, 6, 7], 3), Read("c", [8, 8], 2)])
    cache.crop_text("a", 4)
    cache.crop_text("c", 3)
    cache.remove("b")
    cache.add("d", 30)
    model.forward(cache, [Read("d", [7, 7, 7, 7, 7, 7])])
    cache.remove("a")
    logits, _ = model.forward(cache, [Read("d", [12]), Read("c", [11, 13], 2)])
    for row, text in zip(logits, ([7] * 6 + [12], [9, 9, 8, 11], [9, 9, 8, 11, 13]), strict=True):
        expected = model.model(input_ids=torch.tensor([text])).logits[0, -1]
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-4)


def test_trees_take_their_turns() -> None:
    decoder = SpeculativeDecoder(make(), make(layers=1), tree=(2, 1), verifier="mcss")
    together = decoder.generate(PROMPTS[:3], max_new_tokens=12, seed=2, top_k=8)
    for prompt, row in zip(PROMPTS, together, strict=False):
        assert row.rounds == decoder.generate(prompt, max_new_tokens=12, seed=row.seed, top_k=8).rounds


def test_several_prompts_have_no_one_stream() -> None:
    decoder = SpeculativeDecoder(make(), make(layers=1))
    with pytest.raises(InputError, match="on_tokens: supports a single text"):
        decoder.generate(PROMPTS, on_tokens=print)
