"""Replays a controller over a traced text: computes the decoder's counters without model forwards.

The trace has the draft from every position of the text and the target's acceptance. All controllers are replayed over
the same text with the same random draws, so that their differences are not noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..controllers.length import MAX_DRAFT, AcceptancePredictor, LengthController, Step
from ..infer.core import Stats
from .trace import END, Trace

NOT_TRACED = torch.empty(0)


@dataclass(frozen=True)
class TracedStep(Step):
    """A step with the draft signals of a trace; it has no distribution.

    Attributes:
        node: index of the trace's node.
    """

    node: int = field(kw_only=True)


@dataclass
class ReplayStats(Stats):
    """Counters of a replay.

    Attributes:
        rounds: number of rounds with 0, 1, … ``MAX_DRAFT`` drafted tokens.
    """

    rounds: list[int] = field(default_factory=lambda: [0] * (MAX_DRAFT + 1))


def replay(trace: Trace, controller: LengthController, stop_tokens: frozenset[int]) -> ReplayStats:
    """Return the counters of decoding ``trace.text`` with ``controller``; the first token comes from the prefill."""
    controller.start_text()
    length = len(trace.text)
    stats = ReplayStats(n_generated=length, n_target_forwards=1)
    position = 1
    while position < length:
        if controller.reads_target:
            controller.read_target(trace.target_states[position - 1])
        drafted = _draft(trace, position, controller, stop_tokens)
        accepted = 0
        while accepted < drafted and position + accepted < length and trace.kept[position + accepted]:
            accepted += 1
        if drafted:
            controller.end_round(drafted, accepted)
        stats.rounds[drafted] += 1
        stats.n_draft_forwards += drafted
        stats.n_target_forwards += 1
        stats.n_verified_tokens += drafted + 1
        stats.n_drafted += drafted
        stats.n_accepted += accepted
        stats.n_discarded += drafted - accepted
        position += accepted + 1
    return stats


def _draft(trace: Trace, position: int, controller: LengthController, stop_tokens: frozenset[int]) -> int:
    """Return the number of tokens drafted in the round that starts after ``position`` tokens of the text."""
    longest = min(MAX_DRAFT, trace.budget - position - 1)
    if longest < 1 or not controller.start_round():
        return 0
    node = position
    for index in range(1, longest + 1):
        step = _step(trace, node, index)
        if index == longest or trace.tokens[node] in stop_tokens or not controller.observe(step):
            return index
        node = trace.after[node]
        assert node != END, "a trace has every token that may be drafted"
    return longest


def _step(trace: Trace, node: int, index: int) -> TracedStep:
    """Return the step of ``node``, the token number ``index`` of a draft."""
    return TracedStep(
        index, trace.tokens[node], trace.q[node], NOT_TRACED, NOT_TRACED, trace.states[node : node + 1],
        lambda: trace.ngram_matches[node], draft_signals=trace.signals[node], node=node,
    )  # fmt: skip


class PrecomputedPredictor(AcceptancePredictor):
    """Returns predictions computed for all nodes of a trace in one batch.

    Args:
        predictor: the predictor that computed them.
        predictions: (N,) predictions by node; with a lag of 1, they are for the state *before* the node's token.
    """

    def __init__(self, predictor: AcceptancePredictor, predictions: list[float]) -> None:
        self.lag, self.mean, self.predictions = predictor.lag, predictor.mean, predictions

    def predict(self, step: Step) -> float:
        assert isinstance(step, TracedStep)
        return self.predictions[step.node]
