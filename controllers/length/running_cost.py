"""Fits the cost model to the times of rounds: when models are loaded, in ``specpilot bench cost``, and while decoding.

A round whose draft has n tokens and m forwards takes f + t_draft_start + t_verify_token·n + t_draft·m seconds, where f
is the time of a round without a draft (SpecDec++, Huang et al. 2024, eq. 2.1). A chain has m = n. Trees and copied
tokens have fewer forwards than tokens. The costs are fitted by least squares (:class:`RoundSums`). Rounds that all have
the same n and m do not determine the costs. Therefore four points of a prior cost model always keep some weight.

If the time of a verification is not linear in n (:mod:`.verification_shape`), n stands for equivalent tokens of the
prior's shape. The fit scales the shape and does not change it, because the few rounds in the memory have few numbers of
tokens. For rounds that several requests share, the time is linear: the shape is that of one request's tokens.

* :func:`fit_rounds` fits rounds that were decoded for the measurement.
* :func:`shaped` adds the shape of single forwards.
* :class:`RunningCost` fits the rounds of decoding, with exponentially decaying weights. Its prior is the initial cost
  model. While nothing is drafted, the weights of rounds that drafted decay more slowly.

If every round drafts, the time of a round without a draft is unknown, and so is the gain of drafting. If no round
drafts, no time corrects the cost of drafting. Therefore ``no_draft_is_due`` and ``draft_is_due`` select some rounds
that do the opposite, so that their time is measured. These rounds may lose a limited share of the time, computed with
the current costs. If the initial cost of drafting is far too high, almost no draft is due by this limit. A draft is
therefore also due after a number of rounds that doubles with each measured draft, independent of its cost. If the
measured drafts take less than half of their time by the initial cost model, their median replaces this time.

Rounds that several requests share take longer, and drafts take another share of them. Each power of two of requests has
its own fit (:meth:`RunningCost.at`), which starts from the fit of the next smaller number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import mul
from statistics import median

import numpy as np

from .cost_model import ASSUMED, CostModel
from .verification_shape import Shape, equivalent_tokens

BENT = 0.05  # relative difference of a time from a line, above which the times have a shape
LEAST_POINTS = 4  # minimum number of measured numbers of tokens of a shape
TYPICAL = 8  # longest draft over which ``t_verify_token`` is the mean time of a further token
LEAST_SHARE = 0.01  # minimum of the time of a further token, as a share of the time for one token
MEMORY = 128.0  # rounds after which a weight has decayed to 1/e
KEEP = 1.0 - 1.0 / MEMORY
KEEP_DRAFTED = 1.0 - 1.0 / 1024.0  # decay of rounds that drafted, in each round that does not draft
REFIT = 8  # rounds between two fits, because a fit takes longer than a decision
POINTS = ((0, 0), (2, 0), (6, 0), (4, 4))  # tokens and forwards of the draft in the prior's points
MEASURED = 1e-6  # weight of each point in a fit of rounds that were decoded for the measurement
BEGINNING = 4.0  # initial value of the decaying weight of each point, in rounds
ANCHOR = 0.5  # constant weight of each point, in rounds
PRIOR = 8.0  # initial value of the decaying weight of the initial cost model's times, in rounds
MAX_OVERRUN = 4.0  # a round's time is clipped to this multiple of the expected time, in case it was interrupted
LEAST = 0.01  # lower bound of the fixed part, as a share of a round's mean time
LEAST_DRAFTING = 16  # minimum number of rounds that draft between two measurements of a round without a draft
LEAST_IDLE = 64  # minimum number of rounds without a draft between two measurements of a draft
LONE = 8  # rounds without a draft before a round that drafts whose time is used to correct the initial cost
LONE_DRAFTS = 3  # number of such rounds, whose median may correct the initial cost model
TOO_HIGH = 0.5  # share of the initial cost of drafting below which it is corrected
TRIES = 3  # maximum number of consecutive rounds that draft for a measurement; the first ones may not be measurable
LOSS = 0.004  # maximum share of the time that each of the two kinds of measurements may lose


class RoundSums:
    """Weighted sums over rounds, from which a cost model is fitted.

    Attributes:
        shape: the shape of a verification's time; empty for a line.
        undrafted: sums over rounds without a draft: 1 and seconds.
        drafted: sums over rounds with a draft of n equivalent tokens and m forwards: 1, n, m, n², nm, m², and seconds
            times 1, n and m.
    """

    def __init__(
        self, undrafted: Sequence[float] = (0.0,) * 2, drafted: Sequence[float] = (0.0,) * 9, shape: Shape = ()
    ) -> None:
        self.undrafted, self.drafted, self.shape = [*undrafted], [*drafted], shape

    def add(self, tokens: int, forwards: int, seconds: float, weight: float = 1.0) -> None:
        """Add a round with a draft of ``tokens`` tokens and ``forwards`` forwards, which took ``seconds``.

        Args:
            tokens: tokens of the draft; 0 for a round without a draft.
            forwards: forwards of the draft model.
            seconds: time of the round.
            weight: weight of the round in all sums.
        """
        n, m, t = equivalent_tokens(self.shape, tokens + 1) - 1 if self.shape else tokens, forwards, seconds
        sums = self.drafted if tokens else self.undrafted
        values = (1.0, n, m, n * n, n * m, m * m, t, n * t, m * t) if tokens else (1.0, t)
        for index, value in enumerate(values):
            sums[index] += weight * value

    def decay(self, undrafted: float, drafted: float) -> None:
        """Multiply the weights of rounds without a draft by ``undrafted``, and those with a draft by ``drafted``."""
        self.undrafted = [undrafted * value for value in self.undrafted]
        self.drafted = [drafted * value for value in self.drafted]

    def fit(self, prior: CostModel, weight: float, trust: float = 0.0) -> CostModel:
        """Return the cost model that fits the rounds by least squares.

        Args:
            prior: the cost model that determines costs which the rounds do not determine. It has the same shape. Its
                ``POINTS`` are added to the rounds; the factors of :meth:`_slowdown` multiply the time of a round
                without a draft, and the time that drafting adds.
            weight: weight of each of these points, in rounds.
            trust: weight of the prior's times, in rounds.
        """
        round_factor, draft_factor = self._slowdown(prior, trust)
        sums, first = RoundSums(self.undrafted, self.drafted, self.shape), prior.round(0)
        for tokens, forwards in POINTS:
            seconds = round_factor * first + draft_factor * (prior.round(tokens, forwards) - first)
            sums.add(tokens, forwards, seconds, weight)
        undrafted, (drafts, n, m, nn, nm, mm, t, nt, mt) = sums.undrafted, sums.drafted
        moments = [[undrafted[0] + drafts, drafts, n, m], [drafts, drafts, n, m], [n, n, nn, nm], [m, m, nm, mm]]
        fixed, start, per_token, t_draft = _least_squares(moments, [undrafted[1] + t, t, nt, mt])
        fixed = max(LEAST * (undrafted[1] + t) / (undrafted[0] + drafts), fixed)
        per_token = min(max(per_token, LEAST_SHARE * fixed), fixed)
        return CostModel(t_draft, fixed - per_token, per_token, start, self.shape)

    def _slowdown(self, prior: CostModel, trust: float) -> tuple[float, float]:
        """Return two factors: of the time of a round without a draft, and of the time that drafting adds to it.

        The factors compare the rounds with ``prior``. They are fitted by least squares, and are almost equal if the
        rounds do not distinguish them. The second is at most the first: further time of drafts becomes t_draft_start,
        independent of the number of tokens.

        Args:
            prior: the cost model.
            trust: weight of the factors 1, in rounds.
        """
        drafts, n, m, nn, nm, mm, t, nt, mt = self.drafted
        rounds, seconds = self.undrafted[0] + drafts, self.undrafted[1] + t
        first, costs = prior.round(0), (prior.t_draft_start, prior.t_verify_token, prior.t_draft)
        table = ((drafts, n, m), (n, nn, nm), (m, nm, mm))  # Σ of products of (1, n, m)
        # Sums of the time that drafting adds by the prior, of its squares, and of its products with the times.
        added = sum(map(mul, costs, table[0]))
        squares = sum(cost * sum(map(mul, costs, row)) for cost, row in zip(costs, table, strict=True))
        products = sum(map(mul, costs, (t, nt, mt)))
        equal = ANCHOR * max(prior.round(1) - first, LEAST * first) ** 2
        matrix = [
            [(rounds + trust) * first**2 + equal, first * added - equal],
            [first * added - equal, squares + equal + trust * (prior.round(1) - first) ** 2],
        ]
        right = [first * seconds + trust * first**2, products + trust * (prior.round(1) - first) ** 2]
        round_factor, draft_factor = np.linalg.solve(matrix, right).tolist()
        round_factor = max(round_factor, LEAST)
        return round_factor, min(max(draft_factor, LEAST), round_factor)


def fit_rounds(rounds: Iterable[tuple[int, int, float]]) -> CostModel:
    """Return the cost model of rounds that were decoded for the measurement.

    All rounds with the same numbers of tokens and forwards count as one round with their median time. Rounds without a
    draft have as much weight as all other rounds together, because drafting is compared with them. ``ASSUMED``
    determines costs that the rounds do not determine, such as the split between t_draft and t_verify_token if all
    drafts are chains.

    Args:
        rounds: tokens and forwards of the draft, and seconds, of each round; at least one round has no draft.
    """
    times: dict[tuple[int, int], list[float]] = {}
    for tokens, forwards, seconds in rounds:
        times.setdefault((tokens, forwards), []).append(seconds)
    typical = {shape: median(seconds) for shape, seconds in times.items()}
    sums = RoundSums()
    for (tokens, forwards), seconds in typical.items():
        sums.add(tokens, forwards, seconds, 1.0 if tokens else max(1.0, len(typical) - 1.0))
    return sums.fit(ASSUMED, MEASURED)


def shaped(line: CostModel, seconds: Mapping[int, float]) -> CostModel:
    """Return ``line`` with the shape of measured times.

    The result is ``line`` itself if it explains all times up to 5 %, if there are fewer than four times, or if there is
    none of a single token.

    Noise must not make more tokens faster. Other processes only lengthen forwards, so that a time is at most the times
    of all larger numbers. No token is free: the time of a token is at least ``LEAST_SHARE`` of that of one token.

    Args:
        line: the cost model that was fitted to the times as a line.
        seconds: measured seconds of verifications by number of tokens.
    """
    numbers = sorted(seconds)
    if len(numbers) < LEAST_POINTS or numbers[0] != 1:
        return line
    times = [min(seconds[more] for more in numbers if more >= number) for number in numbers]
    if all(abs(line.round(n - 1, 0) - time) <= BENT * time for n, time in zip(numbers, times, strict=True)):
        return line
    start = min(line.t_draft_start, times[1] - times[0])  # the part of the first step that is no property of tokens
    added = [0.0]
    for (before, number), time in zip(pairwise(numbers), times[1:], strict=True):
        least = added[-1] + LEAST_SHARE * times[0] * (number - before)
        added.append(max(time - start - times[0], least))
    points = [*zip(numbers, added, strict=True)]
    typical = [(n - 1, more) for n, more in points[1:] if n - 1 <= TYPICAL] or [(points[1][0] - 1, points[1][1])]
    slope = sum(k * more for k, more in typical) / sum(k * k for k, _ in typical)
    per_token = min(slope, times[0])
    shape = tuple((n, 1.0 + more / per_token) for n, more in points)
    return replace(
        line, t_verify=times[0] - per_token, t_verify_token=per_token, t_draft_start=start, verify_shape=shape
    )


class RunningCost:
    """A cost model that adapts to measured times.

    Args:
        first: the initial cost model.
        by_rows: the fits for all numbers of requests, by the number's logarithm to base 2, rounded up; None for the fit
            for one request.

    Attributes:
        cost: the current estimate. If all drafts are chains, it does not separate the costs per token of drafting and
            verification, which then the times do not determine and controllers do not need.
        beginning: the decaying weight of the initial cost model's points.
        new: number of rounds since the last fit.
        drafting, drafting_seconds: number and time of the rounds since the last one without a draft.
        no_draft_due: result of ``no_draft_is_due`` in this round, for the first text that called it; None before.
        idle, idle_seconds: number and time of the rounds since the last forward of the draft.
        draft_due: result of ``draft_is_due`` in this round; None before.
        all_draft: whether the requests that share this round draft; None before the first of them has decided. The
            start of a round resets it, because a round whose time is unknown may never be reported.
        tries: number of rounds that drafted for a measurement and could not be measured.
        patience: number of rounds without a draft after which a draft is due, independent of its cost.
        lone_drafts: measured costs of drafting, as shares of the initial cost.
    """

    def __init__(self, first: CostModel, by_rows: dict[int, RunningCost] | None = None) -> None:
        self.first = self.cost = first
        self.by_rows = {0: self} if by_rows is None else by_rows
        self.sums = RoundSums(shape=first.verify_shape)
        self.beginning = BEGINNING
        self.new = 0
        self.drafting, self.drafting_seconds = 0, 0.0
        self.no_draft_due: bool | None = None
        self.idle, self.idle_seconds = 0, 0.0
        self.draft_due: bool | None = None
        self.all_draft: bool | None = None
        self.tries = 0
        self.patience = LEAST_IDLE
        self.lone_drafts: deque[float] = deque(maxlen=LONE_DRAFTS)

    def at(self, rows: int) -> RunningCost:
        """Return the fit for rounds that ``rows`` requests share; a new fit if there were no such rounds before."""
        size = (rows - 1).bit_length()
        if size not in self.by_rows:
            nearest = max(smaller for smaller in self.by_rows if smaller < size)
            self.by_rows[size] = RunningCost(self.by_rows[nearest].cost.line, self.by_rows)
        return self.by_rows[size]

    def add(self, tokens: int, forwards: int, seconds: float) -> None:
        """Add a round, and fit the cost model every ``REFIT`` rounds.

        Args:
            tokens: tokens of the draft; 0 for a round without a draft.
            forwards: forwards of the draft model.
            seconds: time of the round, of which at most ``MAX_OVERRUN`` times the expected time counts.
        """
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
        """Fit the cost model to the rounds."""
        self.cost = self.sums.fit(self.first, ANCHOR + self.beginning, PRIOR / BEGINNING * self.beginning)

    def _compare_with_first(self, tokens: int, forwards: int, seconds: float) -> None:
        """Correct the initial cost of drafting if it is ``TOO_HIGH`` compared with the latest measured drafts."""
        self.patience *= 2
        first = self.first
        drafting = first.t_draft_start + first.t_draft * forwards
        if drafting == 0:
            return
        round_factor = self.cost.round(0) / first.round(0)
        self.lone_drafts.append((seconds / round_factor - first.verification(tokens + 1)) / drafting)
        share = max(median(self.lone_drafts), LEAST)
        if len(self.lone_drafts) == LONE_DRAFTS and share < TOO_HIGH:
            self.first = replace(first, t_draft=share * first.t_draft, t_draft_start=share * first.t_draft_start)
            # Rounds that drafted were clipped by costs that are too high.
            self.sums.drafted, self.beginning = [0.0] * len(self.sums.drafted), BEGINNING
            self.lone_drafts.clear()
            self.patience = LEAST_IDLE

    def skip(self) -> None:
        """Note the end of a round that drafted, or whose time is unknown.

        If the round was to measure a round without a draft, the next try follows later. If it was to measure a draft,
        the next rounds try again, because the first draft of a text also reads the prompt.
        """
        if self.no_draft_due:
            self._begin_drafting()
        self.no_draft_due = None
        if self.draft_due:
            self.tries += 1
            if self.tries == TRIES:
                self._begin_idling()
        self.draft_due = None

    def _begin_drafting(self) -> None:
        """Reset the counters of rounds that draft."""
        self.drafting, self.drafting_seconds = 0, 0.0
        self.no_draft_due = None

    def _begin_idling(self) -> None:
        """Reset the counters of rounds without a forward of the draft."""
        self.idle, self.idle_seconds, self.tries = 0, 0.0, 0
        self.draft_due = None

    def draft_is_due(self) -> bool:
        """Return true if the texts should draft in this round to measure drafts, although it does not seem to pay.

        The loss of such a round is the cost of a drafted token, because the round yields at least one token. The loss
        may be a share ``LOSS`` of the time. After ``patience`` rounds a draft is due, independent of its cost.
        """
        if self.draft_due is None:
            loss = self.cost.round(1) - self.cost.round(0)
            affordable = self.idle >= LEAST_IDLE and loss <= LOSS * self.idle_seconds
            self.draft_due = affordable or self.idle >= self.patience
        return self.draft_due

    def no_draft_is_due(self, rate: float) -> bool:
        """Return true if no text should draft in this round, to measure the time of such a round.

        The loss of such a round is its time minus the time in which one token is decoded at ``rate``. The loss may be
        a share ``LOSS`` of the time.

        Args:
            rate: tokens per second of decoding with drafts.
        """
        if self.no_draft_due is None:
            loss = self.cost.round(0) - 1.0 / rate
            self.no_draft_due = self.drafting >= LEAST_DRAFTING and loss <= LOSS * self.drafting_seconds
        return self.no_draft_due


def _least_squares(moments: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the solution (k,) of the normal equations with non-negative coefficients, except for the first.

    The coefficient of a column without values is 0. A negative coefficient is set to 0, and the remaining equations are
    solved again.

    Args:
        moments: (k, k) left side.
        values: (k,) right side.
    """
    indices = [index for index in range(len(values)) if moments[index][index] > 0]
    while True:
        matrix = [[moments[row][column] for column in indices] for row in indices]
        solution_part = np.linalg.solve(matrix, [values[row] for row in indices]).tolist()
        least = min(solution_part[1:], default=0.0)
        if least >= 0:
            solution = dict(zip(indices, solution_part, strict=True))
            return [solution.get(index, 0.0) for index in range(len(values))]
        del indices[solution_part.index(least, 1)]
