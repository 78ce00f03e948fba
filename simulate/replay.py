"""A controller's rounds over a traced text: the counters that the decoder would have come to, without its forwards.

What is drafted from any point of the text on is in the trace, and so is which of it the target keeps. All controllers
meet the same text and the same draws, so that their differences are not noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..controllers.acceptance.draft_signals import DraftSignals
from ..controllers.length import MAX_DRAFT, AcceptancePredictor, LengthController, Prediction, Step
from ..infer.generation import Stats
from .trace import END, Trace

NO_LAW = torch.empty(0)


@dataclass(frozen=True)
class TracedStep(Step):
    """A step whose distribution is gone; what it said is kept.

    Attributes:
        node: which of the trace's nodes it is.
        said: what the draft said of its token.
    """

    node: int
    said: DraftSignals

    def confidence(self) -> float:
        return self.said[0]

    def top_probability(self) -> float:
        return self.said[1]

    def entropy(self) -> float:
        return self.said[2]

    def signals(self) -> DraftSignals:
        return self.said


def replay(trace: Trace, controller: LengthController, stop_tokens: frozenset[int]) -> Stats:
    """Counters of decoding ``trace.text`` with ``controller``; the first token comes from the prefill."""
    controller.start_text()
    length = len(trace.text)
    stats = Stats(n_generated=length, n_target_forwards=1)
    said = 1
    while said < length:
        drafted = _draft(trace, said, controller, stop_tokens)
        accepted = 0
        while accepted < drafted and said + accepted < length and trace.kept[said + accepted]:
            accepted += 1
        if drafted:
            controller.end_round(drafted, accepted)
        stats.n_draft_forwards += drafted
        stats.n_target_forwards += 1
        stats.n_verified_tokens += drafted + 1
        stats.n_drafted += drafted
        stats.n_accepted += accepted
        stats.n_discarded += drafted - accepted
        said += accepted + 1
    return stats


def _draft(trace: Trace, said: int, controller: LengthController, stop_tokens: frozenset[int]) -> int:
    """How many tokens the round after the first ``said`` tokens of the text drafts."""
    longest = min(MAX_DRAFT, trace.budget - said - 1)
    if longest < 1 or not controller.start_round():
        return 0
    node = said
    for index in range(1, longest + 1):
        step = _step(trace, node, index)
        if index == longest or trace.tokens[node] in stop_tokens or not controller.observe(step):
            return index
        node = trace.after[node]
        assert node != END, "a trace holds every token that may be drafted"
    return longest


def _step(trace: Trace, node: int, index: int) -> TracedStep:
    return TracedStep(
        index, trace.tokens[node], trace.q[node], NO_LAW, NO_LAW, trace.states[node], lambda: trace.ngram_matches[node],
        node, trace.said[node],
    )  # fmt: skip


class PrecomputedPredictor(AcceptancePredictor):
    """A source whose judgements of a trace's nodes are there already: made at once, they take a fraction of the time.

    Args:
        source: who made them.
        judged: (N,) by node; for a late source, of the state *before* the node's token.
    """

    def __init__(self, source: AcceptancePredictor, judged: list[Prediction]) -> None:
        self.lag, self.mean, self.judged = source.lag, source.mean, judged

    def predict(self, step: Step) -> Prediction:
        assert isinstance(step, TracedStep)
        return self.judged[step.node]
