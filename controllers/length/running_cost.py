"""The cost model fitted to the times of rounds: at the start, by ``specpilot bench cost``, and while decoding.

A round whose draft has n tokens and took m forwards of the draft takes fixed + t_draft_start + t_verify_token·n +
t_draft·m seconds, and a round without a draft takes fixed (SpecDec++, Huang et al. 2024, eq. 2.1; m = n for a chain,
fewer for a tree or copied tokens). The costs are fitted by least squares (:class:`RoundSums`). Rounds that are all
alike do not determine them, so four points of a prior cost model always keep some weight.

* :func:`fit_rounds` fits rounds that were decoded to be measured.
* :class:`RunningCost` fits the rounds of decoding, with exponentially decaying weights. Its prior is the cost model at
  the start. What was learned of drafts is kept for longer while nothing is drafted.

Where every round drafts, no time tells what a round without a draft takes, and so whether drafting pays. Where no round
drafts, no time corrects the cost of drafting. ``alone_is_due`` and ``draft_is_due`` say when a round should do the
other thing to measure it, for a bounded share of the time. The bound uses the current costs. If the initial cost of
drafting is far too high, by it almost no draft is due. Therefore a draft is also due after a number of rounds that
doubles with each measured draft, whatever drafts cost. Where the measured drafts take less than half of what the
initial cost model says, their median replaces it.

Rounds that several requests share take longer, and other shares of them go to drafts: there is a fit for each power of
two of requests (``at``), which begins as that of the next smaller number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import mul
from statistics import median

import numpy as np

from .cost_model import ASSUMED, LEAST_SHARE, CostModel

MEMORY = 128.0  # rounds after which a weight has decayed to 1/e
KEEP = 1.0 - 1.0 / MEMORY
KEEP_DRAFTED = 1.0 - 1.0 / 1024.0  # of rounds that drafted, at each round that does not
REFIT = 8  # rounds between two fits: one takes longer than deciding a round
POINTS = ((0, 0), (2, 0), (6, 0), (4, 4))  # tokens and forwards of the draft of the prior's points
MEASURED = 1e-6  # weight of each of these points beside rounds that were decoded to be measured
BEGINNING = 4.0  # initial weight of each point, in rounds, which decays
ANCHOR = 0.5  # weight of each point that does not
PRIOR = 8.0  # initial weight of the initial cost model's own times, in rounds, which decays
MAX_OVERRUN = 4.0  # a round's time is clipped to this multiple of the expected one, in case it was interrupted
LEAST = 0.01  # lower bound of the fixed part, as a share of a round's mean time
LEAST_DRAFTING = 16  # least number of rounds that draft between two that measure what a round without a draft takes
LEAST_IDLE = 64  # least number of rounds without a draft between two that measure what a draft takes
LONE = 8  # rounds without a draft before a round that drafts, whose time tells what drafting takes
LONE_DRAFTS = 3  # such rounds, whose median may correct the initial cost model
TOO_HIGH = 0.5  # share of the initial cost of drafting below which it is corrected
TRIES = 3  # rounds in a row that draft to be measured, of which the first ones may not be
LOSS = 0.004  # share of the time that each of the two may lose


class RoundSums:
    """Weighted sums over rounds, from which a cost model is fitted.

    Attributes:
        alone: of rounds without a draft: 1 and seconds.
        drafted: of rounds with a draft of n tokens and m forwards: 1, n, m, n², nm, m², and seconds times 1, n and m.
    """

    def __init__(self, alone: Sequence[float] = (0.0,) * 2, drafted: Sequence[float] = (0.0,) * 9) -> None:
        self.alone, self.drafted = [*alone], [*drafted]

    def add(self, tokens: int, forwards: int, seconds: float, weight: float = 1.0) -> None:
        """Add a round with a draft of so many ``tokens`` that took so many ``forwards`` of the draft."""
        n, m, t = tokens, forwards, seconds
        sums = self.drafted if tokens else self.alone
        values = (1.0, n, m, n * n, n * m, m * m, t, n * t, m * t) if tokens else (1.0, t)
        for place, value in enumerate(values):
            sums[place] += weight * value

    def decay(self, alone: float, drafted: float) -> None:
        """Multiply the weights of rounds without a draft and of rounds with one."""
        self.alone = [alone * value for value in self.alone]
        self.drafted = [drafted * value for value in self.drafted]

    def fit(self, prior: CostModel, weight: float, trust: float = 0.0) -> CostModel:
        """The cost model of least squares.

        Args:
            prior: the cost model that determines what the rounds do not: its ``POINTS``, with the time of a round
                without a draft and the time that drafting adds multiplied by the factors of :meth:`_slowdown`.
            weight: of each of these points, in rounds.
            trust: weight of the prior's own times, in rounds.
        """
        slower, dearer = self._slowdown(prior, trust)
        sums, first = RoundSums(self.alone, self.drafted), prior.round(0)
        for tokens, forwards in POINTS:
            seconds = slower * first + dearer * (prior.round(tokens, forwards) - first)
            sums.add(tokens, forwards, seconds, weight)
        alone, (one, n, m, nn, nm, mm, t, nt, mt) = sums.alone, sums.drafted
        moments = [[alone[0] + one, one, n, m], [one, one, n, m], [n, n, nn, nm], [m, m, nm, mm]]
        fixed, start, per_token, t_draft = _least_squares(moments, [alone[1] + t, t, nt, mt])
        fixed = max(LEAST * (alone[1] + t) / (alone[0] + one), fixed)
        per_token = min(max(per_token, LEAST_SHARE * fixed), fixed)
        return CostModel(t_draft, fixed - per_token, per_token, start)

    def _slowdown(self, prior: CostModel, trust: float) -> tuple[float, float]:
        """The factors by which a round without a draft, and what drafting adds to it, take longer than by ``prior``.

        They are fitted by least squares, and are equal where the rounds do not tell them apart. The second is at most
        the first: what a draft takes beyond that becomes t_draft_start, whatever the number of its tokens.

        Args:
            trust: weight of the factors 1, in rounds.
        """
        one, n, m, nn, nm, mm, t, nt, mt = self.drafted
        rounds, seconds = self.alone[0] + one, self.alone[1] + t
        first, costs = prior.round(0), (prior.t_draft_start, prior.t_verify_token, prior.t_draft)
        table = ((one, n, m), (n, nn, nm), (m, nm, mm))  # Σ of products of (1, n, m)
        added = sum(map(mul, costs, table[0]))  # Σ of what drafting adds by the prior, its squares and products
        squares = sum(cost * sum(map(mul, costs, row)) for cost, row in zip(costs, table, strict=True))
        products = sum(map(mul, costs, (t, nt, mt)))
        equal = ANCHOR * max(prior.round(1) - first, LEAST * first) ** 2
        matrix = [
            [(rounds + trust) * first**2 + equal, first * added - equal],
            [first * added - equal, squares + equal + trust * (prior.round(1) - first) ** 2],
        ]
        right = [first * seconds + trust * first**2, products + trust * (prior.round(1) - first) ** 2]
        slower, dearer = np.linalg.solve(matrix, right).tolist()
        slower = max(slower, LEAST)
        return slower, min(max(dearer, LEAST), slower)


def fit_rounds(rounds: Iterable[tuple[int, int, float]]) -> CostModel:
    """The cost model of rounds that were decoded to be measured.

    All rounds of one shape count as much as their median, and rounds without a draft as much as all others, since
    drafting has to compete with them. What the rounds do not determine follows ``ASSUMED``, as the split between
    t_draft and t_verify_token where all drafts are chains.

    Args:
        rounds: tokens and forwards of the draft, and seconds; at least one without a draft.
    """
    times: dict[tuple[int, int], list[float]] = {}
    for tokens, forwards, seconds in rounds:
        times.setdefault((tokens, forwards), []).append(seconds)
    typical = {shape: median(seconds) for shape, seconds in times.items()}
    sums = RoundSums()
    for (tokens, forwards), seconds in typical.items():
        sums.add(tokens, forwards, seconds, 1.0 if tokens else max(1.0, len(typical) - 1.0))
    return sums.fit(ASSUMED, MEASURED)


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
        self.sums = RoundSums()
        self.beginning = BEGINNING  # weight of the initial cost model's points that decays
        self.new = 0  # rounds since the last fit
        self.drafting, self.drafting_seconds = 0, 0.0  # rounds since the last one without a draft, and their time
        self.due: bool | None = None  # what ``alone_is_due`` said in this round, to the first text that asked
        self.idle, self.idle_seconds = 0, 0.0  # rounds since the last forward of the draft, and their time
        self.draft_due: bool | None = None  # what ``draft_is_due`` said in this round
        self.tries = 0  # rounds that drafted to be measured, and were not
        self.patience = LEAST_IDLE  # rounds without a draft after which one is due whatever it costs
        self.lone_drafts: deque[float] = deque(maxlen=LONE_DRAFTS)  # cost of drafting as a share of the initial one

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
        if tokens:
            self.drafting += 1
            self.drafting_seconds += seconds
            self.skip()
        else:
            self._begin_drafting()
        if forwards:
            if self.idle >= LONE:
                self._compare_with_first(tokens, forwards, seconds)
            self._begin_idling()
        else:
            self.idle += 1
            self.idle_seconds += seconds
            self.draft_due = None
        self.beginning *= KEEP
        self.sums.decay(KEEP, KEEP if tokens else KEEP_DRAFTED)
        self.sums.add(tokens, forwards, seconds)
        self.new += 1
        if self.new == REFIT:
            self.new = 0
            self._fit()

    def _fit(self) -> None:
        self.cost = self.sums.fit(self.first, ANCHOR + self.beginning, PRIOR / BEGINNING * self.beginning)

    def _compare_with_first(self, tokens: int, forwards: int, seconds: float) -> None:
        """Correct the initial cost of drafting if it is ``TOO_HIGH`` by the latest rounds that drafted alone."""
        self.patience *= 2
        first = self.first
        drafting = first.t_draft_start + first.t_draft * forwards
        if drafting == 0:
            return
        slower = self.cost.round(0) / first.round(0)
        self.lone_drafts.append((seconds / slower - first.round(0) - first.t_verify_token * tokens) / drafting)
        share = max(median(self.lone_drafts), LEAST)
        if len(self.lone_drafts) == LONE_DRAFTS and share < TOO_HIGH:
            self.first = replace(first, t_draft=share * first.t_draft, t_draft_start=share * first.t_draft_start)
            # Rounds that drafted were clipped by costs that are too high.
            self.sums.drafted, self.beginning = [0.0] * len(self.sums.drafted), BEGINNING
            self.lone_drafts.clear()
            self.patience = LEAST_IDLE

    def skip(self) -> None:
        """A round ended that does not tell what one without a draft takes, or whose time is not known.

        If it was to tell what a round without a draft takes, the next try is later. If it was to tell what a draft
        takes, the next rounds try again, since the first draft of a text also reads the prompt.
        """
        if self.due:
            self._begin_drafting()
        self.due = None
        if self.draft_due:
            self.tries += 1
            if self.tries == TRIES:
                self._begin_idling()
        self.draft_due = None

    def _begin_drafting(self) -> None:
        self.drafting, self.drafting_seconds = 0, 0.0
        self.due = None

    def _begin_idling(self) -> None:
        self.idle, self.idle_seconds, self.tries = 0, 0.0, 0
        self.draft_due = None

    def draft_is_due(self) -> bool:
        """Whether the texts should draft in this round although it does not seem to pay, to measure what drafts take.

        The round gives one token at least, and takes longer than one without a draft by what a drafted token costs.
        That may be a share ``LOSS`` of the time. After ``patience`` rounds the draft is due whatever it costs.
        """
        if self.draft_due is None:
            lost = self.cost.round(1) - self.cost.round(0)
            affordable = self.idle >= LEAST_IDLE and lost <= LOSS * self.idle_seconds
            self.draft_due = affordable or self.idle >= self.patience
        return self.draft_due

    def alone_is_due(self, rate: float) -> bool:
        """Whether no text should draft in this round, to measure what such a round takes.

        It gives one token instead of those that ``rate``, in tokens per second, gives in its time.
        """
        if self.due is None:
            lost = self.cost.round(0) - 1.0 / rate
            self.due = self.drafting >= LEAST_DRAFTING and lost <= LOSS * self.drafting_seconds
        return self.due


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
