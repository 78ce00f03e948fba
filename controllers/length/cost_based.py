"""Base classes of length controllers that compare a token's gain with its cost at the text's rate."""

from __future__ import annotations

from copy import copy

from .base import LengthController
from .cost_model import BatchCosts, CostModel
from .rate import RunningRatio, steady_rate
from .running_cost import RunningCost

ROUNDS = 128.0  # memory of the rate, in rounds; a shorter memory follows a text more closely and is noisier
PRIOR = 16.0  # weight of the initial estimates, in rounds or tokens
PROBE = 16  # rounds without a draft before a probe
LONGEST = 512  # maximum number of rounds before a probe, after several failed probes


class Probes:
    """Decides which rounds draft as probes, although drafting does not seem to pay.

    The first probe follows ``PROBE`` rounds without a draft. The number of rounds before the next probe doubles each
    time, up to ``LONGEST``. If a probe pays, the next round drafts as well, and the number is halved.

    Attributes:
        idle: number of rounds since the last draft.
        patience: number of such rounds before a probe.
        probing: whether this round is a probe.
        succeeded: whether the last round was a probe that paid.
    """

    def __init__(self) -> None:
        self.idle, self.patience = 0, PROBE
        self.probing = False
        self.succeeded = False

    def start_round(self, *, pays: bool, may_pay: bool) -> bool:
        """Return true if the round drafts.

        Args:
            pays: whether drafting pays according to the estimates.
            may_pay: whether drafting would pay if all tokens were accepted.
        """
        self.probing = may_pay and not pays and (self.succeeded or self.idle >= self.patience)
        if not (pays or self.probing):
            self.idle += 1
            return False
        if pays:
            self.patience = PROBE
        elif not self.succeeded:
            self.patience = min(2 * self.patience, LONGEST)
        self.idle, self.succeeded = 0, False
        return True

    def end_round(self, paid: bool) -> None:
        """Learn from a round that drafted.

        Args:
            paid: whether the round yielded at least as many tokens as the rate yields in its time.
        """
        if paid and self.probing:
            self.patience, self.succeeded = max(self.patience // 2, PROBE), True


class CostBasedController(LengthController):
    """Estimates the rate of tokens per second on a text with a cost model that may change.

    Attributes:
        cost: the current cost model; None if the controller does not use costs.
        batch: costs by the number of requests that share a round, or None.
        running: the fit of the cost model to the rounds' wall times; None if costs do not adapt.
        rate: tokens per second on the text so far, by ``cost``.
        probes: decides which rounds draft although drafting does not seem to pay.
        rows: number of requests that share the round.
        drafting_rows: number of requests whose next token the next forward of the draft model gives.
    """

    cost: CostModel | None
    batch: BatchCosts | None
    running: RunningCost | None
    rate: RunningRatio
    probes: Probes
    rows = 1
    drafting_rows = 1

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:
        if self.running is not None:
            self.running.add(tokens, forwards, seconds)

    def untimed(self) -> None:
        if self.running is not None:
            self.running.skip()

    def drafting_with(self, rows: int) -> None:
        self.drafting_rows = rows

    @property
    def price_rate(self) -> float:
        """The tokens that a second of drafting must yield in this request, per second.

        All requests of a round wait for a forward of the draft model, and only some of them gain a token by it. With
        adapting costs, each of these gains must therefore pay for its share of the time of all requests. Without, the
        price does not depend on other requests, so that the seed determines the drafts.
        """
        if self.running is None:
            return self.rate.value
        return self.rate.value * self.rows / self.drafting_rows

    def _shared_cost(self, rows: int) -> CostModel | None:
        """Return the costs of rounds that ``rows`` requests share; None if they are already in use."""
        self.rows = self.drafting_rows = rows
        if self.running is not None:
            before, self.running = self.running, self.running.at(rows)
            self.running.all_draft = None  # before the first request of the round decides
            return None if before is self.running else self.running.cost
        return None if self.batch is None else self.batch.at(rows)

    def begin_draft(self, *, pays: bool, may_pay: bool) -> bool:
        """Return true if this round drafts, for ``start_round``; a round without a draft is counted as one token.

        Some rounds draft as probes, although drafting does not seem to pay, to notice when it pays again. With adapting
        costs, some rounds do the opposite of what pays, to measure its time. The requests of a round then draft
        together or not at all, because all of them wait if one drafts: the first request decides.

        Args:
            pays: whether drafting pays according to the estimates.
            may_pay: whether drafting would pay if all tokens were accepted.
        """
        drafts = None if self.running is None else self.running.all_draft
        if drafts is None:
            drafts = self._decide(pays=pays, may_pay=may_pay)
        if self.running is not None and self.rows > 1:
            self.running.all_draft = drafts
        if not drafts:
            self._earn(1.0, 0)
        return drafts

    def _decide(self, *, pays: bool, may_pay: bool) -> bool:
        """Return true if this round drafts; the arguments are those of :meth:`begin_draft`."""
        if self.running is None:
            return self.probes.start_round(pays=pays, may_pay=may_pay)
        if pays and self.running.no_draft_is_due(self.rate.value):
            return False
        return self.probes.start_round(pays=pays, may_pay=may_pay) or self.running.draft_is_due()

    def _end_draft(self, accepted: int, seconds: float) -> None:
        """Learn from a round that drafted; ``seconds`` is its time by the cost model."""
        self.probes.end_round(accepted + 1.0 >= self.rate.value * seconds)

    def _earn(self, tokens: float, drafted: int) -> None:
        """Add a round that yielded ``tokens``; the times of this and of earlier rounds are by the current costs."""
        if self.running is not None:
            self._follow(self.running.cost, drafted)
        if self.cost is not None:
            self.rate.add(tokens, self.cost.round(drafted))

    def _follow(self, cost: CostModel, drafted: int) -> None:
        """Use ``cost`` from now on; convert the rate so far by the costs of a round with ``drafted`` tokens."""
        if self.cost is not None and cost is not self.cost:
            self.rate.below *= cost.round(drafted) / self.cost.round(drafted)
            self.cost = cost


class TrainedLength(CostBasedController):
    """A cost-based controller that starts with the mean acceptance of its training data.

    This is the base class of a user's controllers that stop by costs. A subclass calls ``begin_draft`` in
    ``start_round``. In ``observe`` it compares the gain of a token with ``rate.value`` tokens per second times the
    token's seconds by ``cost``. It calls ``super()`` in other methods that it overrides.

    The rate is estimated on the current text with the times of the cost model. Wall times are used only with ``adapt``;
    otherwise the seed determines the drafts.

    Args:
        mean: mean acceptance in the training data.
        cost: costs of a draft step and a verification.
        adapt: use ``cost`` only initially, and correct it by the rounds' wall times, over all texts and rows of a
            batch. Drafts then depend on the machine's speed; the distribution of the text does not.
        batch: costs by the number of requests that share a round, used instead of ``cost``.
    """

    cost: CostModel

    def __init__(self, mean: float, cost: CostModel, *, adapt: bool = False, batch: BatchCosts | None = None) -> None:
        self.mean, self.cost, self.batch = mean, cost, batch
        self.running = RunningCost(cost) if adapt else None
        self.prior_rate = steady_rate(mean, cost)
        self.probes = Probes()
        self.start_text()

    def with_costs(
        self, cost: CostModel | None = None, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> TrainedLength:
        other = copy(self)
        TrainedLength.__init__(other, self.mean, cost or self.cost, adapt=adapt, batch=batch)
        return other

    def start_text(self) -> None:
        if self.running is not None and self.running.cost is not self.cost:
            self.cost = self.running.cost
            self.prior_rate = steady_rate(self.mean, self.cost)
        # New objects, because the controllers of a batch's texts are shallow copies of one controller.
        self._begin_rate()
        if self.running is None:
            self.probes = Probes()
        self.has_started = False

    def begin_draft(self, *, pays: bool, may_pay: bool) -> bool:
        self.has_started = True
        return super().begin_draft(pays=pays, may_pay=may_pay)

    def end_round(self, drafted: int, accepted: int) -> None:
        self._earn(accepted + 1.0, drafted)
        self._end_draft(accepted, self.cost.round(drafted))

    def shared_by(self, rows: int) -> None:
        cost = self._shared_cost(rows)
        if cost is None or cost is self.cost:
            return
        if self.has_started:
            self._follow(cost, 0)
        else:  # the rate of a request alone is no estimate for rounds that several requests share
            self.cost, self.prior_rate = cost, steady_rate(self.mean, cost)
            self._begin_rate()

    def _begin_rate(self) -> None:
        """Set the rate to its initial estimate."""
        self.rate = RunningRatio(self.prior_rate, PRIOR * self.cost.round(0), ROUNDS)  # tokens per second
