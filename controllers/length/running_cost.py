"""What drafting and verifying cost now, learnt from the rounds' own times. Pure arithmetic: no clock is read here.

A round of K drafted tokens takes fixed + K·per_token seconds (SpecDec++, Huang et al. 2024, eq. 2.1). The line is
fitted by least squares to the last rounds, older ones forgotten exponentially. Rounds of one length tell nothing of the
slope: two points of the first cost model are never forgotten altogether, and move with how much slower or faster
rounds have become altogether.
"""

from __future__ import annotations

from typing import NamedTuple

from .cost_model import CostModel
from .rate import RunningRatio

MEMORY = 128.0  # rounds after which one counts for 1/e
POINTS = (0, 4)  # drafted tokens of the points of the first cost model
BEGINNING = 4.0  # rounds that each of them counts for at first
ANCHOR = 0.5  # and that each counts for ever
PRIOR = 8.0  # rounds that the first cost model counts for in how much slower rounds have become
MAX_OVERRUN = 4.0  # a round counts as no more than this times what was expected: it may have been interrupted
LEAST = 0.01  # of a round's mean time, which the fixed part never falls below


class RunningCost:
    """A cost model that follows the machine.

    Args:
        first: what is known of the costs at the beginning.

    Attributes:
        cost: the present estimate. It does not tell a verification's own cost a token from the draft's, which rounds
            cannot, and controllers need not.
    """

    def __init__(self, first: CostModel) -> None:
        self.first = self.cost = first
        self.slower = RunningRatio(1.0, PRIOR * first.round(0), MEMORY)
        self.seen = Rounds()
        for drafted in POINTS:
            self.seen = self.seen.plus(BEGINNING, drafted, first.round(drafted))

    def add(self, drafted: int, seconds: float) -> None:
        """A round that drafted so many tokens took so many ``seconds``."""
        seconds = min(seconds, MAX_OVERRUN * self.cost.round(drafted))
        self.slower.add(seconds, self.first.round(drafted))
        self.seen = self.seen.times(1.0 - 1.0 / MEMORY).plus(1.0, drafted, seconds)
        rounds = self.seen
        for point in POINTS:
            rounds = rounds.plus(ANCHOR, point, self.slower.value * self.first.round(point))
        self.cost = rounds.fit()


class Rounds(NamedTuple):
    """Sums over rounds: of 1, K, K², seconds and K·seconds."""

    n: float = 0.0
    k: float = 0.0
    kk: float = 0.0
    t: float = 0.0
    kt: float = 0.0

    def plus(self, weight: float, k: int, t: float) -> Rounds:
        """With a round of K = ``k`` that took ``t`` seconds."""
        new = weight, weight * k, weight * k * k, weight * t, weight * k * t
        return Rounds(*(a + b for a, b in zip(self, new, strict=True)))

    def times(self, factor: float) -> Rounds:
        return Rounds(*(factor * value for value in self))

    def fit(self) -> CostModel:
        """The line of least squares; K must not be the same throughout."""
        n, k, kk, t, kt = self
        per_token = max(0.0, (n * kt - k * t) / (n * kk - k * k))
        return CostModel(per_token, max(LEAST * t / n, (t - per_token * k) / n), 0.0)
