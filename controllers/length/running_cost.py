"""A cost model fitted to the wall times of rounds.

A round whose draft has n tokens and took m forwards of the draft takes fixed + t_verify_token·n + t_draft·m seconds
(SpecDec++, Huang et al. 2024, eq. 2.1; m = n for a chain, fewer for a tree or copied tokens). The plane is fitted by
least squares with exponentially decaying weights. Rounds that are all alike do not determine it, so three points of the
initial cost model always keep some weight; they are scaled by how much slower or faster rounds have become. So is
``t_draft_start``, which is subtracted from the times of rounds that drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cost_model import LEAST_SHARE, CostModel
from .rate import RunningRatio

MEMORY = 128.0  # rounds after which a weight has decayed to 1/e
KEEP = 1.0 - 1.0 / MEMORY
REFIT = 8  # rounds between two fits: one takes longer than deciding a round
POINTS = ((0, 0), (4, 0), (4, 4))  # tokens and forwards of the draft of the initial cost model's three points
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
        cost: the current estimate. Where all drafts are chains it does not separate the per-token costs of drafting and
            verification, which the times of rounds do not determine then and controllers do not need.
    """

    def __init__(self, first: CostModel) -> None:
        self.first = self.cost = first
        self.slower = RunningRatio(1.0, PRIOR * first.round(0), MEMORY)
        self.sums = [0.0] * 9  # weighted, over rounds: 1, n, m, n², nm, m², seconds, n·seconds, m·seconds
        for tokens, forwards in POINTS:
            self._add(self.sums, BEGINNING, tokens, forwards, self._initial(tokens, forwards))
        self.new = 0  # rounds since the last fit

    def add(self, tokens: int, forwards: int, seconds: float) -> None:
        """Add the time of a round with a draft of so many tokens and forwards; after ``REFIT`` ``cost`` is fitted."""
        seconds = min(seconds, MAX_OVERRUN * self.cost.round(tokens, forwards))
        self.slower.add(seconds, self.first.round(tokens, forwards))
        start = self.slower.value * self.first.t_draft_start
        self.sums = [KEEP * value for value in self.sums]
        self._add(self.sums, 1.0, tokens, forwards, max(0.0, seconds - start) if tokens else seconds)
        self.new += 1
        if self.new == REFIT:
            self.new = 0
            self.cost = self._fitted()

    def _initial(self, tokens: int, forwards: int) -> float:
        """Seconds of a round by the initial cost model, without ``t_draft_start``."""
        return self.first.verification(tokens + 1) + self.first.t_draft * forwards

    @staticmethod
    def _add(sums: list[float], weight: float, n: int, m: int, t: float) -> None:
        for place, value in enumerate((1.0, n, m, n * n, n * m, m * m, t, n * t, m * t)):
            sums[place] += weight * value

    def _fitted(self) -> CostModel:
        sums, slower = [*self.sums], self.slower.value
        for tokens, forwards in POINTS:
            self._add(sums, ANCHOR, tokens, forwards, slower * self._initial(tokens, forwards))
        one, n, m, nn, nm, mm, t, nt, mt = sums
        fixed, per_token, t_draft = _least_squares([[one, n, m], [n, nn, nm], [m, nm, mm]], [t, nt, mt])
        fixed = max(LEAST * t / one, fixed)
        per_token = min(max(per_token, LEAST_SHARE * fixed), fixed)
        return CostModel(t_draft, fixed - per_token, per_token, slower * self.first.t_draft_start)


def _least_squares(moments: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The solution of the normal equations, (3, 3) and (3,), with slopes of at least 0: one that is not is left out."""
    kept = [0, 1, 2]
    while True:
        found = _solve([[*(moments[row][column] for column in kept), values[row]] for row in kept])
        least = min(found[1:], default=0.0)
        if least >= 0:
            solution = dict(zip(kept, found, strict=True))
            return [solution.get(place, 0.0) for place in range(3)]
        del kept[found.index(least, 1)]


def _solve(rows: list[list[float]]) -> list[float]:
    """The solution of n equations with a positive definite matrix, (n, n + 1) with the right side as the last column.

    Between two forwards NumPy's takes longer: its code has left the processor's caches.
    """
    for place, row in enumerate(rows):
        row[:] = [value / row[place] for value in row]
        for other in rows:
            if other is not row:
                factor = other[place]
                other[:] = [value - factor * pivot for value, pivot in zip(other, row, strict=True)]
    return [row[-1] for row in rows]
