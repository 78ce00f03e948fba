"""A controller replayed over traced texts has the distribution of rounds that it has in the decoder, exactly."""

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from scipy import stats
from specpilot.controllers.acceptance.ngram_index import NgramIndex, no_match
from specpilot.controllers.length import Fixed, Heuristic, LengthController, Step
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import TokenDistribution
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import RandomSource, SharedNoise
from specpilot.models import TextReader
from specpilot.simulate.replay import replay
from specpilot.simulate.trace import END, TextNoise, Trace, trace

from ..helpers.drafts import SMALL, small
from ..helpers.enumeration import outcomes, output_distribution, rounds
from ..helpers.traces import PROMPT, traced_text
from ..helpers.training import accepted

Counters = tuple[int, int, int, int]
STOPS = frozenset([1])


class UsesEverything(LengthController):
    """Decides by all values of a step and of a round's start, so that any difference changes the draft."""

    reads_target = True

    def start_text(self) -> None:
        self.phase = 0.0

    def read_target(self, state: torch.Tensor) -> None:
        self.phase += float(state.sum())

    def start_round(self) -> bool:
        self.phase += 0.37
        return self.phase % 1.0 < 0.8

    def observe(self, step: Step) -> bool:
        total = step.confidence() + step.top_probability() + step.entropy() + float(step.hidden.sum()) + step.token
        total += step.match().matches
        return (self.phase + total * 7.0) % 1.0 < 0.6


def decoded(decoder: SpeculativeDecoder, sampling: SamplingParams, budget: int, rng: RandomSource) -> Counters:
    generation, loop = rounds(decoder, PROMPT, sampling, budget, rng)
    for _ in loop:
        pass
    return _counters(generation.stats)


models_of = cache(small)  # what they remember is computed once


@cache
def traces(sampling: SamplingParams, budget: int) -> list[tuple[float, Trace]]:
    """Return every traced text with its probability; traces are the same for all rules."""
    decoder = SpeculativeDecoder(*models_of("model", 4, Path()))

    def traced(rng: RandomSource) -> Trace:
        text: list[int] = []
        while len(text) < budget and not STOPS & {*text[-1:]}:
            reader, prompt = TextReader.begin(decoder.target, PROMPT)
            logits, _ = reader.read([*prompt, *text], keep=1)
            text.append(TokenDistribution.from_logits(sampling, logits).sample(0, rng))
        return trace(decoder.target, decoder.drafts[0], PROMPT, text, budget, sampling, rng, STOPS)

    return [*outcomes(traced)]


def _counters(stats: object) -> Counters:
    names = ("n_generated", "n_target_forwards", "n_drafted", "n_accepted")
    return tuple(vars(stats)[name] for name in names)  # type: ignore[return-value]


RULES = [
    lambda: Fixed(2), lambda: Heuristic(2), UsesEverything,
    *(lambda name=name: SMALL[name]["length"] for name in ("planned", "planned once")),
]  # fmt: skip


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(1.0, 2), SamplingParams(0.0), SamplingParams(0.7, None)],
    ids=["top-2", "greedy", "whole"],
)
@pytest.mark.parametrize("make_rule", RULES)
def test_replay_has_the_distribution_of_decoding(
    make_rule: Callable[[], LengthController], sampling: SamplingParams
) -> None:
    decoder = SpeculativeDecoder(*models_of("model", 4, Path()))
    decoder.use_length(make_rule())
    decoder.stop_tokens = STOPS
    budget = 5 if sampling.top_k is not None else 4
    observed: dict[Counters, float] = defaultdict(float)
    for probability, traced in traces(sampling, budget):
        observed[_counters(replay(traced, decoder.length, STOPS))] += probability
    expected = output_distribution(lambda rng: decoded(decoder, sampling, budget, rng))
    assert observed.keys() == expected.keys()
    if sampling.temperature > 0:
        assert any(forwards < generated for generated, forwards, *_ in observed)  # a draft was kept
    for counters, probability in expected.items():
        assert observed[counters] == pytest.approx(probability, abs=1e-9)


def test_replay_has_the_distribution_of_decoding_with_shared_noise() -> None:
    """A chi-square test compares the counters of replayed traces with those of decoded texts."""
    target, draft = models_of("model", 4, Path())
    decoder = SpeculativeDecoder(target, draft, verifier="invariant", length=UsesEverything())
    decoder.stop_tokens = STOPS
    sampling, budget, count = SamplingParams(1.0, None), 5, 1000
    by_replay, by_decoding = Counter[Counters](), Counter[Counters]()
    for seed in range(count):
        by_decoding[decoded(decoder, sampling, budget, SharedNoise(seed))] += 1
        rng, text = RandomSource(seed), list[int]()
        while len(text) < budget and not STOPS & {*text[-1:]}:
            reader, prompt = TextReader.begin(decoder.target, PROMPT)
            logits, _ = reader.read([*prompt, *text], keep=1)
            text.append(TokenDistribution.from_logits(sampling, logits).sample(0, rng))
        models = decoder.target, decoder.drafts[0]
        traced = trace(*models, PROMPT, text, budget, sampling, rng, STOPS, verifier="invariant")
        by_replay[_counters(replay(traced, decoder.length, STOPS))] += 1
    names = [name for name in by_decoding | by_replay if by_decoding[name] + by_replay[name] >= 20]
    assert len(names) > 5
    assert stats.chi2_contingency([[each[name] for name in names] for each in (by_decoding, by_replay)]).pvalue > 1e-3


P, FIRST, SECOND = ([0.35, 0.3, 0.2, 0.15, 0.0], [0.1, 0.5, 0.0, 0.3, 0.1], [0.4, 0.1, 0.3, 0.1, 0.1])


def test_noise_given_the_text_has_its_law() -> None:
    """The joint distribution of the target's token and of two draft tokens with the same noise is compared."""
    p, *both = (torch.tensor([row]).double() for row in (P, FIRST, SECOND))
    first, second = (TokenDistribution(row, None, 5) for row in both)
    listed = TokenDistribution(p[:, [3, 1, 0, 2]], torch.tensor([[3, 1, 0, 2]]), 5)
    expected, observed = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    after = Counter[int]()
    count = 3000
    for seed in range(count):
        shared, rng = SharedNoise(seed), RandomSource(seed)
        expected[tuple(shared.token(each, 0, 0) for each in (listed, first, second))] += 1
        y = listed.sample(0, rng)
        noise = TextNoise(listed, [y], rng)
        observed[y, noise.token(first, 0, 0), noise.token(second, 0, 0)] += 1
        after[noise.token(second, 0, 1)] += 1
    names = [name for name in expected | observed if expected[name] + observed[name] >= 20]
    assert len(names) > 20
    assert stats.chi2_contingency([[each[name] for name in names] for each in (expected, observed)]).pvalue > 1e-3
    assert stats.chisquare([after[i] for i in range(5)], [q * count for q in SECOND]).pvalue > 1e-3


@pytest.mark.parametrize("verifier", ["token-wise", "invariant"])
def test_a_trace_off_the_text_is_the_models_own(verifier: str) -> None:
    target, draft, text, observed = traced_text(verifier=verifier)
    rejected = next(t for t in range(len(text)) if not observed.kept[t])
    node, prefix = rejected, [*PROMPT, *text[:rejected]]
    for _ in range(4):
        distributions = []
        for model in (target, draft):
            reader, _ = TextReader.begin(model, prefix)
            logits, hidden = reader.read(prefix, keep=1)
            distributions.append(TokenDistribution.from_logits(SamplingParams(1.0, 8), logits))
        token = observed.tokens[node]
        (q,) = distributions[1].of([token])
        assert observed.q[node] == pytest.approx(q)
        rows = [each.dense.double() for each in distributions]
        assert observed.accept[node] == pytest.approx(float(accepted(*rows, torch.tensor([[token]]), verifier)))
        assert torch.allclose(observed.states[node].double(), hidden[0], atol=1e-6)
        step = Step(1, token, q, distributions[1].probabilities, logits, hidden, no_match)
        assert observed.ngram_matches[node] == NgramIndex([*prefix]).match([token])
        assert observed.signals[node] == pytest.approx((step.confidence(), step.top_probability(), step.entropy()))
        prefix.append(token)
        node = observed.after[node]
        assert node != END


def test_greedy_drafts_are_accepted_with_the_targets_probability() -> None:
    target, draft, text, _ = traced_text()
    sampling = SamplingParams(1.0, None)  # the text has any token
    traced = trace(
        target, draft, PROMPT, text, len(text), sampling, RandomSource(0), frozenset(),
        draft_sampling=SamplingParams(0.0, None, 1.0),
    )  # fmt: skip
    p, q = (
        TextReader.begin(model, PROMPT, 64)[0].read([*PROMPT, *text[:-1]], keep=len(text))[0]
        for model in (target, draft)
    )
    top = q.argmax(-1).tolist()
    assert traced.tokens[: len(text)] == top
    assert traced.kept == [token == x for token, x in zip(top, text, strict=True)]
    expected = TokenDistribution.from_logits(sampling, p).of(top)
    assert traced.accept[: len(text)] == pytest.approx(expected)
    confidences = q.softmax(-1).max(-1).values.tolist()
    assert [signals[0] for signals in traced.signals[: len(text)]] == pytest.approx(confidences)
