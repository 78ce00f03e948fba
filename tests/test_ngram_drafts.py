"""N-gram drafts alone, before a draft model's, and as a router's arm: what is copied, exact distributions, names."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.controllers.acceptance.ngram_index import MAX_NGRAM, NOTHING, NgramIndex, NgramMatch
from specpilot.controllers.length import (
    Confidence,
    CumulativeConfidence,
    Entropy,
    Fallback,
    Fixed,
    LengthController,
    RateOptimal,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.draft_sources import DraftSources, Plan
from specpilot.controllers.router import SingleArm
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters import prompt_lookup
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.drafters.prompt_lookup import MAX_RUN, CopyRates, Match, PromptLookup

from .drafts import CHEAP
from .tiny import make


def defined(tokens: Sequence[int], longest: int) -> Match | None:
    """The match by its definition, without an index."""
    for length in range(min(longest, len(tokens) - 1), 0, -1):
        starts = [i for i in range(len(tokens) - length) if tokens[i : i + length] == tokens[-length:]]
        if starts:
            position = starts[-1] + length
            agree = (tokens[position - 1 - n] == tokens[-1 - n] for n in range(position))
            return Match(position, min(MAX_RUN, next((n for n, same in enumerate(agree) if not same), position)))
    return None


@settings(max_examples=200)
@given(
    before=st.lists(st.integers(0, 2), max_size=12),
    text=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    start=st.integers(0, 30),
    longest=st.integers(1, 5),
)
def test_lookup_by_its_definition(before: list[int], text: list[int], start: int, longest: int) -> None:
    lookup = PromptLookup(before, text[:start], longest)
    predicted = lookup.extend(text)
    tokens = [*before, *text]
    expected = []
    for place in range(len(before) + len(text[:start]), len(tokens)):
        match = defined(tokens[:place], longest)
        if match is not None:
            expected.append((match.run, tokens[match.position] == tokens[place]))
    assert predicted == expected
    match = lookup.match()
    assert match == defined(tokens, longest)
    if match is not None:
        copied = lookup.copy(match, 7, frozenset([2]))
        whole = tokens[:]
        for token in copied:
            assert token == whole[match.position + len(whole) - len(tokens)]
            whole.append(token)
        assert copied.index(2) == len(copied) - 1 if 2 in copied else len(copied) == 7


def test_rates_follow_the_text() -> None:
    rates = CopyRates()
    for _ in range(50):
        rates.add(3, True)
        rates.add(5, False)
    assert (rates.after(3) > 0.9, rates.after(5) < 0.1) == (True, True)
    assert rates.recent.value == pytest.approx(0.5, abs=0.05)


def survivals(run: int, copies: int) -> list[float]:
    """Of copies after a match of ``run`` at the beginning of a text."""
    rates = CopyRates()
    return [*accumulate((rates.after(length) for length in range(run, run + copies)), mul, initial=1.0)]


def test_sources_learn_what_the_model_yields() -> None:
    sources = DraftSources(CostModel(0.2, 1.0, 0.05), model=True)
    for _ in range(60):
        sources.end_round(0, 4, 0)
    assert sources.plan([1.0]) == Plan(0, False)
    for _ in range(16):
        sources.end_round(0, 0, 0)
    assert sources.plan([1.0]) == Plan(0, True)  # a probe
    sources.end_round(0, 4, 0)
    for idle in range(1, 33):  # the next one comes after twice as many rounds
        sources.end_round(0, 0, 0)
        assert sources.plan([1.0]) == Plan(0, idle == 32)
    for _ in range(60):
        sources.end_round(0, 4, 4)
    assert sources.plan([1.0]) == Plan(0, True)
    known, below = sources.accepted.value, sources.rate.below * sources.rate.keep
    sources.end_round(3, 4, 2)  # the model's tokens were not looked at
    assert sources.accepted.value == known
    assert sources.rate.below - below == pytest.approx(sources.cost.round(7, 4))


def repetitive(n: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    piece = torch.randint(64, (n,), generator=generator).tolist()
    return [*piece, *torch.randint(64, (3,), generator=generator).tolist(), *piece]


@pytest.mark.parametrize("rule", [Confidence(0.9), CumulativeConfidence(0.9), Entropy(0.9), Fallback(0.9)])
def test_rules_steer_copies_as_certain_tokens(rule: LengthController) -> None:
    decoder = SpeculativeDecoder(make(), None, ngram=Ngram(), length=rule)
    generation = decoder.generate(repetitive(20, 1), max_new_tokens=30, temperature=0)
    longest = max(len(round.drafted) for round in generation.rounds)
    assert longest == (10 if isinstance(rule, Fallback) else 20)


def test_the_length_controller_sees_the_models_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And their n-gram matches after the copy before them; a draft that is the target is always right there."""
    seen, told = list[tuple[int, int]](), list[tuple[int, int]]()
    monkeypatch.setattr(
        prompt_lookup, "PRIOR", (0.05, 0.9, 0.9, 0.9, 0.05, 0.05, 0.05)
    )  # copies end, the model goes on
    monkeypatch.setattr(
        Fixed, "observe", lambda self, s: bool(seen.append((s.index, s.match().matches))) or s.index < 2
    )
    monkeypatch.setattr(Fixed, "end_round", lambda self, *round: told.append(round))
    decoder = SpeculativeDecoder(make(), make(), ngram=Ngram(4, CHEAP), length=Fixed(2))
    rounds = decoder.generate(repetitive(4, 1), max_new_tokens=100, temperature=0).rounds[1:]
    assert any(len(round.drafted) > 2 for round in rounds)
    assert ({index for index, _ in seen}, max(matches for _, matches in seen)) == ({1, 2}, 4)
    assert {*told} <= {(1, 1), (2, 2)}
    assert 0 < len(told) < len([round for round in rounds if round.drafted])


@pytest.fixture(scope="module")
def plain() -> list[int]:
    decoder = SpeculativeDecoder.from_pretrained("tiny", None)
    return list(decoder.generate("def add(a, b):", max_new_tokens=24, temperature=0).tokens)


ARMS: dict[str, Any] = {"draft": ["tiny-draft", "ngram", "autoregressive"], "router": SingleArm(0, 3)}


@pytest.mark.parametrize(
    ("options", "drafts", "ngrams"),
    [
        ({"draft": "ngram"}, 0, [Ngram()]),
        ({"draft": "ngram:7", "cost": 0.3}, 0, [Ngram(7, CostModel.load(0.3))]),
        ({"draft": "ngram", "length": 5}, 0, [Ngram()]),
        ({"draft": "tiny-draft+ngram", "length": "confidence:0.4", "cost": 0.1}, 1, [Ngram(4, CostModel.load(0.1))]),
        ({"draft": "tiny-draft+ngram:2", "length": "tiny-lag-free", "cost": 0.2}, 1, [Ngram(2, CostModel.load(0.2))]),
        (ARMS | {"length": "tiny-lag-free", "cost": 0.2}, 0, [None, Ngram(cost=CostModel.load(0.2)), None]),
    ],
)
def test_by_name(options: dict[str, Any], drafts: int, ngrams: list[Ngram | None], plain: list[int]) -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", **options)
    found = [decoder.config] if decoder.routing is None else decoder.routing.arms
    assert (len(decoder.drafts), [one.ngram for one in found]) == (drafts, ngrams)
    assert isinstance(found[0].length, RateOptimal) == (options.get("length") == "tiny-lag-free")
    assert decoder.generate("def add(a, b):", max_new_tokens=24, temperature=0).tokens == plain


tokens = st.integers(0, 3)
texts = st.lists(tokens, max_size=30)


def followers(text: list[int], length: int) -> list[int]:
    """What came after each earlier occurrence of the last ``length`` tokens."""
    end = text[len(text) - length :]
    return [text[i + length] for i in range(len(text) - length) if text[i : i + length] == end]


def by_hand(text: list[int], token: int) -> NgramMatch:
    lengths = [n for n in range(1, min(MAX_NGRAM, len(text)) + 1) if followers(text, n)]
    if not lengths:
        return NOTHING
    found = followers(text, max(lengths))
    agrees = max((n for n in lengths if token in followers(text, n)), default=0)
    return NgramMatch(agrees, max(lengths), found.count(token) / len(found), found[-1])


@settings(max_examples=200)
@given(
    prompt=texts,
    rounds=st.lists(st.tuples(st.lists(tokens, max_size=6), st.integers(0, 6), tokens, st.booleans()), max_size=6),
)
def test_drafts_come_and_go(prompt: list[int], rounds: list[tuple[list[int], int, int, bool]]) -> None:
    """Round by round: a draft is looked up token by token, or not at all, then some of it is kept and a token added."""
    text = [*prompt]
    index = NgramIndex(text)
    for draft, accepted, bonus, asked in rounds:
        for k in range(1, len(draft) + 1) if asked else ():
            assert index.match(draft[:k]) == by_hand([*text, *draft[: k - 1]], draft[k - 1])
        text += [*draft[:accepted], bonus]
    assert index.match([0]) == by_hand(text, 0)
