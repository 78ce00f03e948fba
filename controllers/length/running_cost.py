"""What drafting and verifying cost now, learnt from the rounds' own times. Pure arithmetic: no clock is read here.

A round of K drafted tokens takes fixed + K·per_token seconds (SpecDec++, Huang et al. 2024, eq. 2.1). The line is
fitted by least squares to the last rounds, older ones forgotten exponentially. Rounds of one length tell nothing of the
slope: a few points of the cost model at the beginning are never forgotten, and move with how much slower or faster
rounds have become altogether.
"""

from __future__ import annotations

from ..cost_model import CostModel
from .rate import RunningRatio

MEMORY = 128.0  # rounds after which one counts for 1/e
ANCHORS = (0, 4)  # drafted tokens of the points that are not forgotten
ANCHOR = 4.0  # rounds that each of them counts for
PRIOR = 8.0  # rounds that the first cost model counts for in how much slower rounds have become
LONGEST = 4.0  # a round counts as no more than this times what was expected: it may have been interrupted
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
        # Sums over rounds: of 1, K, K², seconds and K·seconds.
        self.n = self.k = self.kk = self.t = self.kt = 0.0

    def add(self, drafted: int, seconds: float) -> None:
        """A round that drafted so many tokens took so many ``seconds``."""
        seconds = min(seconds, LONGEST * self.cost.round(drafted))
        keep = 1.0 - 1.0 / MEMORY
        self.slower.add(seconds, self.first.round(drafted))
        self.n = keep * self.n + 1.0
        self.k = keep * self.k + drafted
        self.kk = keep * self.kk + drafted * drafted
        self.t = keep * self.t + seconds
        self.kt = keep * self.kt + drafted * seconds
        self.cost = self._fit()

    def _fit(self) -> CostModel:
        n, k, kk, t, kt = self.n, self.k, self.kk, self.t, self.kt
        for drafted in ANCHORS:
            seconds = self.slower.value * self.first.round(drafted)
            n += ANCHOR
            k += ANCHOR * drafted
            kk += ANCHOR * drafted * drafted
            t += ANCHOR * seconds
            kt += ANCHOR * drafted * seconds
        per_token = max(0.0, (n * kt - k * t) / (n * kk - k * k))
        fixed = max(LEAST * t / n, (t - per_token * k) / n)
        return CostModel(per_token, fixed, 0.0)
