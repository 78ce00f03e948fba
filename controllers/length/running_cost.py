"""A cost model fitted to the wall times of rounds.

A round of K drafted tokens takes fixed + K·per_token seconds (SpecDec++, Huang et al. 2024, eq. 2.1). The line is
fitted by least squares with exponentially decaying weights. Rounds of a single length do not determine the slope, so
two points of the initial cost model always keep some weight; they are scaled by how much slower or faster rounds have
become.
"""

from __future__ import annotations

from typing import NamedTuple

from .cost_model import CostModel
from .rate import RunningRatio

MEMORY = 128.0  # rounds after which a weight has decayed to 1/e
POINTS = (0, 4)  # numbers of drafted tokens of the two points of the initial cost model
BEGINNING = 4.0  # initial weight of each point, in rounds
ANCHOR = 0.5  # weight of each point that does not decay
PRIOR = 8.0  # weight of the initial cost model in the slowdown, in rounds
MAX_OVERRUN = 4.0  # a round's time is clipped to this multiple of the expected one, in case it was interrupted
LEAST = 0.01  # lower bound of the fixed part, as a share of a round's mean time


class RunningCost:
    """A cost model that adapts to measured times.

    Args:
        first: the initial cost model.

    Attributes:
        cost: the current estimate. It does not separate the per-token costs of drafting and verification, which the
            times of rounds do not determine and controllers do not need.
    """

    def __init__(self, first: CostModel) -> None:
        self.first = self.cost = first
        self.slower = RunningRatio(1.0, PRIOR * first.round(0), MEMORY)
        self.seen = Rounds()
        for drafted in POINTS:
            self.seen = self.seen.plus(BEGINNING, drafted, first.round(drafted))

    def add(self, drafted: int, seconds: float) -> None:
        """Add the time of a round."""
        seconds = min(seconds, MAX_OVERRUN * self.cost.round(drafted))
        self.slower.add(seconds, self.first.round(drafted))
        self.seen = self.seen.times(1.0 - 1.0 / MEMORY).plus(1.0, drafted, seconds)
        rounds = self.seen
        for point in POINTS:
            rounds = rounds.plus(ANCHOR, point, self.slower.value * self.first.round(point))
        self.cost = rounds.fit()


class Rounds(NamedTuple):
    """Weighted sums over rounds of 1, K, K², seconds and K·seconds."""

    n: float = 0.0
    k: float = 0.0
    kk: float = 0.0
    t: float = 0.0
    kt: float = 0.0

    def plus(self, weight: float, k: int, t: float) -> Rounds:
        """The sums with another round of K = ``k`` and ``t`` seconds."""
        new = weight, weight * k, weight * k * k, weight * t, weight * k * t
        return Rounds(*(a + b for a, b in zip(self, new, strict=True)))

    def times(self, factor: float) -> Rounds:
        return Rounds(*(factor * value for value in self))

    def fit(self) -> CostModel:
        """The least-squares line; the rounds must have different K."""
        n, k, kk, t, kt = self
        per_token = max(0.0, (n * kt - k * t) / (n * kk - k * k))
        return CostModel(per_token, max(LEAST * t / n, (t - per_token * k) / n), 0.0)
