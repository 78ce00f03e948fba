"""A cost model fitted to the wall times of rounds.

A round whose draft has n tokens and took m forwards of the draft takes fixed + t_draft_start + t_verify_token·n +
t_draft·m seconds, and a round without a draft takes fixed (SpecDec++, Huang et al. 2024, eq. 2.1; m = n for a chain,
fewer for a tree or copied tokens). The costs are fitted by least squares with exponentially decaying weights. Rounds
that are all alike do not determine them, so four points of the initial cost model always keep some weight; they are
scaled by how much slower or faster rounds have become. What was learned of drafts is kept for longer while nothing is
drafted.

Where every round drafts, nothing tells what one without a draft takes, and so whether drafting pays. ``alone_is_due``
says when a round should not draft to measure it.

Rounds that several requests share take longer, and other shares of them go to drafts: there is a fit for each power of
two of requests (``at``), which begins as that of the next smaller number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .cost_model import LEAST_SHARE, CostModel
from .rate import RunningRatio

MEMORY = 128.0  # rounds after which a weight has decayed to 1/e
KEEP = 1.0 - 1.0 / MEMORY
KEEP_DRAFTED = 1.0 - 1.0 / 1024.0  # of rounds that drafted, at each round that does not
REFIT = 8  # rounds between two fits: one takes longer than deciding a round
POINTS = ((0, 0), (2, 0), (6, 0), (4, 4))  # tokens and forwards of the draft of the initial cost model's points
BEGINNING = 4.0  # initial weight of each point, in rounds, which decays
ANCHOR = 0.5  # weight of each point that does not
PRIOR = 8.0  # weight of the initial cost model in the slowdown, in rounds
MAX_OVERRUN = 4.0  # a round's time is clipped to this multiple of the expected one, in case it was interrupted
LEAST = 0.01  # lower bound of the fixed part, as a share of a round's mean time
LEAST_DRAFTING = 16  # least number of rounds that draft between two that measure what a round without a draft takes
LOSS = 0.004  # share of the time that these may lose


class RunningCost:
    """A cost model that adapts to measured times.

    Args:
        first: the initial cost model.
        of_rows: the fits for all numbers of requests, by their logarithms; None: this is the first, for one request.

    Attributes:
        cost: the current estimate. Where all drafts are chains it does not separate the per-token costs of drafting and
            verification, which the times of rounds do not determine then and controllers do not need.
    """

    def __init__(self, first: CostModel, of_rows: dict[int, RunningCost] | None = None) -> None:
        self.first = self.cost = first
        self.of_rows = {0: self} if of_rows is None else of_rows
        self.slower = RunningRatio(1.0, PRIOR * first.round(0), MEMORY)
        # Weighted sums over rounds: without a draft, 1 and seconds; with one, 1, n, m, n², nm, m², seconds, …
        self.alone, self.drafted = [0.0] * 2, [0.0] * 9
        self.beginning = BEGINNING  # weight of the initial cost model's points that decays
        self.new = 0  # rounds since the last fit
        self.drafting, self.drafting_seconds = 0, 0.0  # rounds since the last one without a draft, and their time
        self.due: bool | None = None  # what ``alone_is_due`` said in this round, to the first text that asked

    def at(self, rows: int) -> RunningCost:
        """The fit for rounds that ``rows`` requests share."""
        size = (rows - 1).bit_length()
        if size not in self.of_rows:
            nearest = max(known for known in self.of_rows if known < size)
            self.of_rows[size] = RunningCost(self.of_rows[nearest].cost, self.of_rows)
        return self.of_rows[size]

    def add(self, tokens: int, forwards: int, seconds: float) -> None:
        """Add the time of a round with a draft of so many tokens and forwards; after ``REFIT`` ``cost`` is fitted."""
        seconds = min(seconds, MAX_OVERRUN * self.cost.round(tokens, forwards))
        self.slower.add(seconds, self.first.round(tokens, forwards))
        if tokens:
            self.drafting += 1
            self.drafting_seconds += seconds
            self.skip()
        else:
            self._begin_drafting()
        keep = KEEP if tokens else KEEP_DRAFTED
        self.beginning *= KEEP
        self.alone = [KEEP * value for value in self.alone]
        self.drafted = [keep * value for value in self.drafted]
        _add(self.alone, self.drafted, 1.0, tokens, forwards, seconds)
        self.new += 1
        if self.new == REFIT:
            self.new = 0
            self.cost = self._fitted()

    def skip(self) -> None:
        """A round that does not tell what one without a draft takes ended; if it was to, the next try is later."""
        if self.due:
            self._begin_drafting()
        self.due = None

    def _begin_drafting(self) -> None:
        self.drafting, self.drafting_seconds = 0, 0.0
        self.due = None

    def alone_is_due(self, rate: float) -> bool:
        """Whether no text should draft in this round, to measure what such a round takes.

        It gives one token instead of those that ``rate``, in tokens per second, gives in its time.
        """
        if self.due is None:
            lost = self.cost.round(0) - 1.0 / rate
            self.due = self.drafting >= LEAST_DRAFTING and lost <= LOSS * self.drafting_seconds
        return self.due

    def _fitted(self) -> CostModel:
        alone, drafted, slower = [*self.alone], [*self.drafted], self.slower.value
        for tokens, forwards in POINTS:
            seconds = slower * self.first.round(tokens, forwards)
            _add(alone, drafted, ANCHOR + self.beginning, tokens, forwards, seconds)
        one, n, m, nn, nm, mm, t, nt, mt = drafted
        moments = [[alone[0] + one, one, n, m], [one, one, n, m], [n, n, nn, nm], [m, m, nm, mm]]
        fixed, start, per_token, t_draft = _least_squares(moments, [alone[1] + t, t, nt, mt])
        fixed = max(LEAST * (alone[1] + t) / (alone[0] + one), fixed)
        per_token = min(max(per_token, LEAST_SHARE * fixed), fixed)
        return CostModel(t_draft, fixed - per_token, per_token, start)


def _add(alone: list[float], drafted: list[float], weight: float, n: int, m: int, t: float) -> None:
    sums, values = (drafted, (1.0, n, m, n * n, n * m, m * m, t, n * t, m * t)) if n else (alone, (1.0, t))
    for place, value in enumerate(values):
        sums[place] += weight * value


def _least_squares(moments: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The solution of the normal equations, (k, k) and (k,).

    All but the first are at least 0: one that is not is left out.
    """
    kept = [*range(len(values))]
    while True:
        matrix = [[moments[row][column] for column in kept] for row in kept]
        found = np.linalg.solve(matrix, [values[row] for row in kept]).tolist()
        least = min(found[1:], default=0.0)
        if least >= 0:
            solution = dict(zip(kept, found, strict=True))
            return [solution.get(place, 0.0) for place in range(len(values))]
        del kept[found.index(least, 1)]
