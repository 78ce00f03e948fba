"""Joint decoding (MTAD, MTJD) of small models, compared with its definition by enumeration, and its limits."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.length import Fixed
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import Draft
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.beams import Beams, draft_beams
from specpilot.infer.random_source import RandomSource
from specpilot.models import TextReader, language_model

from ..helpers.drafts import reading
from ..helpers.enumeration import DEPTH, PROMPT, Remembering, assert_same, decoder_distribution, target_distribution
from ..helpers.tiny import make

Text = tuple[int, ...]
Next = Callable[[Text], list[float]]  # the next token's probabilities


def table(reader: Remembering, sampling: SamplingParams) -> Next:
    """Return the distribution after each text, from the model's own forward over all of it."""
    return cache(lambda text: sampling(reader.after(text)[0]).tolist())


def searched(q: Next, text: Text, width: int, length: int) -> Iterator[tuple[float, Text]]:
    """Return (probability, tokens) of every outcome of beam sampling, by the products of eq. 2."""

    def joint(tokens: Text) -> float:
        return math.prod(q((*text, *tokens[:i]))[token] for i, token in enumerate(tokens))

    def draws(weights: dict[Text, float], count: int) -> Iterator[tuple[float, list[Text]]]:
        if count == 0 or not weights:
            yield 1.0, []
            return
        mass = sum(weights.values())
        for draw, weight in weights.items():
            remaining_weights = {other: w for other, w in weights.items() if other != draw}
            for probability, remaining in draws(remaining_weights, count - 1):
                yield weight / mass * probability, [draw, *remaining]

    def levels(beams: list[Text], depth: int) -> Iterator[tuple[float, Text]]:
        if depth == 0:
            yield 1.0, max(beams, key=joint)
            return
        candidates = {(*beam, token): joint((*beam, token)) for beam in beams for token in range(len(q(text)))}
        for probability, chosen in draws({c: w for c, w in candidates.items() if w > 0}, width):
            for more, best in levels(chosen, depth - 1):
                yield probability * more, best

    yield from levels([()], length)


def reference(p: Next, q: Next, width: int, length: int, tau: float, budget: int) -> dict[Text, float]:
    """Return the distribution of MTAD's first DEPTH tokens by Algorithm 1."""
    total: dict[Text, float] = {}

    def go(generated: Text, probability: float) -> None:
        if len(generated) >= DEPTH:
            total[generated[:DEPTH]] = total.get(generated[:DEPTH], 0.0) + probability
            return
        text = (*PROMPT, *generated)
        longest = min(length, budget - len(generated) - 1) if generated else 0  # the first token is the prefill's
        drafts = searched(q, text, width, longest) if longest else [(1.0, ())]
        for drafted, draft in drafts:
            accepted, big, small = 0, 1.0, 1.0
            for i, token in enumerate(draft):
                before = (*text, *draft[:i])
                big, small = big * p(before)[token], small * q(before)[token]
                if min(1.0, big / small) > tau:
                    accepted = i + 1
            for token, more in enumerate(p((*text, *draft[:accepted]))):
                if more > 0:
                    go((*generated, *draft[:accepted], token), probability * drafted * more)

    go((), 1.0)
    return total


@pytest.mark.parametrize(
    ("width", "length", "seed", "tau", "sampling"),
    [
        (1, 2, 0, 0.0, SamplingParams(1.0, None)),
        (1, 2, 1, 0.5, SamplingParams(0.7, 3)),
        (2, 2, 2, 0.3, SamplingParams(1.0, None)),
        (2, 2, 3, 0.8, SamplingParams(1.5, 2)),
        (3, 1, 4, 0.3, SamplingParams(1.0, None)),
        (3, 1, 5, 0.9, SamplingParams(0.7, None)),
    ],
)
def test_mtad_is_algorithm_1(width: int, length: int, seed: int, tau: float, sampling: SamplingParams) -> None:
    target, draft = reading(seed), reading(seed + 1000)
    decoder = SpeculativeDecoder(target, draft, verifier=f"mtad:{tau}", beams=Beams(width), length=Fixed(length))
    p, q = table(target, sampling), table(draft, sampling)
    assert_same(decoder_distribution(decoder, sampling, budget=4), reference(p, q, width, length, tau, 4))


@pytest.mark.parametrize(("width", "length"), [(1, 3), (1, 2), (3, 1)])
def test_one_beam_or_one_token_of_the_target_is_sampling(width: int, length: int) -> None:
    """MTJD with K = 1, or with a single beam, is drawing token by token (after Definition 3.1)."""
    target = reading(4)
    decoder = SpeculativeDecoder(target, None, verifier="mtjd", beams=Beams(width), length=Fixed(length))
    sampling = SamplingParams(1.0, None)
    assert_same(decoder_distribution(decoder, sampling, budget=4), target_distribution(target, sampling))


def beams_after_prompt(
    drafter: Remembering, beams: Beams, length: int, rng: RandomSource, stops: frozenset[int] = frozenset()
) -> Draft:
    """Return the drafts after PROMPT; the cache then holds all but its last token."""
    reader, text = TextReader.begin(drafter, PROMPT[:-1])
    reader.read(text)
    sampling, size = SamplingParams(1.0, None), drafter.vocab_size
    draft = draft_beams(reader, PROMPT[-1:], beams, length, sampling, rng, vocab_size=size, stop_tokens=stops)
    assert reader.cache.tokens[reader.text] == [*PROMPT, *draft.tokens[:-1]]
    return draft


@pytest.mark.parametrize("seed", range(4))
def test_beams_as_wide_as_all_sequences_find_the_most_probable(seed: int) -> None:
    length, drafter = 3, reading(seed, 4)
    q = table(drafter, SamplingParams(1.0, None))
    for beams in (Beams(64, argmax=True), Beams(64)):
        draft = beams_after_prompt(drafter, beams, length, RandomSource(0))
        joint = {
            tokens: math.prod(q((*PROMPT, *tokens[:i]))[token] for i, token in enumerate(tokens))
            for tokens in itertools.product(range(4), repeat=length)
        }
        assert tuple(draft.tokens) == max(joint, key=joint.__getitem__)
        drawn = [row.of([token])[0] for row, token in zip(draft.distributions, draft.tokens, strict=True)]
        assert math.prod(drawn) == pytest.approx(joint[tuple(draft.tokens)])


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mpt", "t5"])
@pytest.mark.parametrize("argmax", [False, True])
def test_the_cache_holds_the_best_beam(architecture: str, argmax: bool) -> None:
    """After beams were split and removed, the rest of the cache gives the same results as a text without a search."""
    subject = language_model(make(architecture, vocab=32, layers=1))
    with torch.inference_mode():
        (reader, text), (fresh, _) = (TextReader.begin(subject, [3, 1, 4, 1, 5]) for _ in range(2))
        unread = text
        for step in range(3):
            sampling, rng = SamplingParams(1.0, 8), RandomSource(step)
            beams = Beams(5, argmax)
            draft = draft_beams(reader, unread, beams, 4, sampling, rng, vocab_size=32, stop_tokens=frozenset())
            text = [*text, *draft.tokens]
            unread = text[reader.length :]
            assert unread == draft.tokens[-1:]
        logits, _ = reader.read(unread, keep=1)
        expected, _ = fresh.read(text, keep=1)
    assert torch.allclose(logits, expected, atol=1e-3, rtol=1e-4)


def test_a_beam_that_has_ended_stays_as_it_is() -> None:
    """Token 2 ends a text. Drafts have it only at their end, and are not longer than requested."""
    lengths = set()
    for seed in range(40):
        draft = beams_after_prompt(reading(2), Beams(3), 4, RandomSource(seed), frozenset([2]))
        assert 2 not in draft.tokens[:-1]
        assert len(draft.tokens) == 4 or draft.tokens[-1] == 2
        lengths.add(len(draft.tokens))
    assert len(lengths) > 1


def small(verifier: str = "mtad:0.3") -> SpeculativeDecoder:
    draft = None if verifier == "mtjd" else make(seed=1, layers=1)
    return SpeculativeDecoder(make(), draft, verifier=verifier, beams=Beams(4), length=Fixed(3))


@pytest.mark.parametrize("verifier", ["mtad:0.3", "mtjd"])
def test_counters_budget_stream_and_lists(verifier: str) -> None:
    decoder = small(verifier)
    streamed: list[int] = []
    output = decoder.generate([1, 2, 3], max_new_tokens=29, top_k=10, seed=7, on_tokens=streamed.extend)
    assert streamed == output.tokens
    assert len(output.tokens) == 29 == output.stats.n_generated
    assert output.stats.n_drafted == output.stats.n_accepted + output.stats.n_discarded
    if verifier == "mtjd":
        assert output.stats.n_drafted == output.stats.n_draft_forwards == 0
        assert output.stats.n_target_forwards == 29
    else:
        assert output.stats.n_target_forwards == len(output.rounds)
        assert output.stats.n_draft_forwards + output.stats.n_target_forwards == 29 + output.stats.n_discarded
    again = decoder.generate([[5, 6], [1, 2, 3]], max_new_tokens=29, top_k=10, seed=[6, 7])
    assert again[1].tokens == output.tokens
    decoder.stop_tokens = frozenset(output.tokens[9:10])
    cut = decoder.generate([1, 2, 3], max_new_tokens=29, top_k=10, seed=7)
    assert cut.finish_reason == "eos"
    assert cut.tokens[-1] in decoder.stop_tokens
    assert not decoder.stop_tokens & set(cut.tokens[:-1])


@pytest.mark.parametrize(
    ("sampling", "message"),
    [({"top_k": 3}, "beams=4:"), ({"temperature": 0.0}, "temperature 0 leaves one token")],
)
def test_beams_wider_than_the_support(sampling: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small().generate([1, 2], **sampling)
    for width in (0, 65):
        with pytest.raises(InputError, match=f"beams={width}"):
            Beams(width)


def test_a_step_of_one_token_needs_no_beams_at_temperature_0() -> None:
    target = make()
    decoder = SpeculativeDecoder(target, None, verifier="mtjd", beams=Beams(4), length=Fixed(1))
    greedy = SpeculativeDecoder(target, None).generate([1, 2], max_new_tokens=12, temperature=0)
    assert decoder.generate([1, 2], max_new_tokens=12, temperature=0).tokens == greedy.tokens
