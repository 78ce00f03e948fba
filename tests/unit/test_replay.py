"""A controller replayed over traced texts has the distribution of rounds that it has in the decoder, exactly."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from specpilot.controllers.acceptance.ngram_index import NgramIndex, nothing
from specpilot.controllers.length import Fixed, Heuristic, LengthController, Step
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import TokenDistribution
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import RandomSource
from specpilot.models import TextReader
from specpilot.simulate.replay import replay
from specpilot.simulate.trace import END, Trace, trace

from ..helpers.drafts import SMALL, small
from ..helpers.enumeration import outcomes, output_distribution, rounds
from ..helpers.traces import PROMPT, traced_text

Counters = tuple[int, int, int, int]
STOPS = frozenset([1])


class UsesEverything(LengthController):
    """Decides by all that a step and a round's start hold, so that any difference in it shows."""

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
    """Every traced text with its probability; they are the same for all rules."""
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
    found: dict[Counters, float] = defaultdict(float)
    for probability, traced in traces(sampling, budget):
        found[_counters(replay(traced, decoder.length, STOPS))] += probability
    expected = output_distribution(lambda rng: decoded(decoder, sampling, budget, rng))
    assert found.keys() == expected.keys()
    if sampling.temperature > 0:
        assert any(forwards < generated for generated, forwards, *_ in found)  # a draft was kept
    for counters, probability in expected.items():
        assert found[counters] == pytest.approx(probability, abs=1e-9)


def test_a_trace_off_the_text_is_the_models_own() -> None:
    target, draft, text, found = traced_text()
    rejected = next(t for t in range(len(text)) if not found.kept[t])
    node, prefix = rejected, [*PROMPT, *text[:rejected]]
    for _ in range(4):
        distributions = []
        for model in (target, draft):
            reader, _ = TextReader.begin(model, prefix)
            logits, hidden = reader.read(prefix, keep=1)
            distributions.append(TokenDistribution.from_logits(SamplingParams(1.0, 8), logits))
        token = found.tokens[node]
        (p,), (q,) = (each.of([token]) for each in distributions)
        assert found.q[node] == pytest.approx(q)
        assert found.accept[node] == pytest.approx(min(1.0, p / q))
        assert torch.allclose(found.states[node].double(), hidden[0], atol=1e-6)
        step = Step(1, token, q, distributions[1].probabilities, logits, hidden, nothing)
        assert found.ngram_matches[node] == NgramIndex([*prefix]).match([token])
        assert found.signals[node] == pytest.approx((step.confidence(), step.top_probability(), step.entropy()))
        prefix.append(token)
        node = found.after[node]
        assert node != END
