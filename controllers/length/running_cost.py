"""A cost model fitted to the wall times of rounds.

A round of K drafted tokens takes fixed + K·per_token seconds (SpecDec++, Huang et al. 2024, eq. 2.1). The line is
fitted by least squares with exponentially decaying weights. Rounds of a single length do not determine the slope, so
two points of the initial cost model always keep some weight; they are scaled by how much slower or faster rounds have
become. So is ``t_draft_start``, which is subtracted from the times of rounds that drafted.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

from .cost_model import CostModel
from .rate import RunningRatio

MEMORY = 128.0  # rounds after which a weight has decayed to 1/e
KEEP = 1.0 - 1.0 / MEMORY
REFIT = 8  # rounds between two fits: one takes longer than deciding a round
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
        self.line = replace(first, t_draft_start=0.0)
        self.slower = RunningRatio(1.0, PRIOR * first.round(0), MEMORY)
        self.seen = Rounds()
        for drafted in POINTS:
            self.seen.add(BEGINNING, drafted, self.line.round(drafted))
        self.new = 0  # rounds since the last fit

    def add(self, drafted: int, seconds: float) -> None:
        """Add the time of a round; after ``REFIT`` of them ``cost`` is fitted."""
        seconds = min(seconds, MAX_OVERRUN * self.cost.round(drafted))
        self.slower.add(seconds, self.first.round(drafted))
        start = self.slower.value * self.first.t_draft_start
        self.seen.decay(KEEP)
        self.seen.add(1.0, drafted, max(0.0, seconds - start) if drafted else seconds)
        self.new += 1
        if self.new == REFIT:
            self.new = 0
            self.cost = self._fitted()

    def _fitted(self) -> CostModel:
        rounds, slower = copy(self.seen), self.slower.value
        for point in POINTS:
            rounds.add(ANCHOR, point, slower * self.line.round(point))
        return rounds.fit(slower * self.first.t_draft_start)


@dataclass
class Rounds:
    """Weighted sums over rounds of 1, K, K², seconds and K·seconds."""

    n: float = 0.0
    k: float = 0.0
    kk: float = 0.0
    t: float = 0.0
    kt: float = 0.0

    def add(self, weight: float, k: int, t: float) -> None:
        """Add a round of K = ``k`` and ``t`` seconds."""
        self.n += weight
        self.k += weight * k
        self.kk += weight * k * k
        self.t += weight * t
        self.kt += weight * k * t

    def decay(self, factor: float) -> None:
        """Multiply the weights of all rounds by ``factor``."""
        self.n *= factor
        self.k *= factor
        self.kk *= factor
        self.t *= factor
        self.kt *= factor

    def fit(self, start: float) -> CostModel:
        """The least-squares line, with ``start`` as ``t_draft_start``; the rounds must have different K."""
        per_token = max(0.0, (self.n * self.kt - self.k * self.t) / (self.n * self.kk - self.k * self.k))
        fixed = max(LEAST * self.t / self.n, (self.t - per_token * self.k) / self.n)
        return CostModel(per_token, fixed, 0.0, start)
