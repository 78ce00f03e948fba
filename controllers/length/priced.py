"""What length controllers have in common that weigh a token by what it costs at the text's own rate."""

from __future__ import annotations

from copy import copy

from .base import LengthController
from .cost_model import BatchCosts, CostModel
from .rate import RunningRatio, steady_rate
from .running_cost import RunningCost

ROUNDS = 128.0  # memory of the rate; shorter ones follow a text more closely and are noisier
PRIOR = 16.0  # weight of the initial estimates, in rounds or tokens
PROBE = 16  # rounds without a draft before a probe
LONGEST = 512  # maximum number of such rounds after several failed probes


class Probes:
    """Counts rounds without a draft.

    A probe comes after ``PROBE`` of them, then after twice as many each time, up to ``LONGEST``. Where a probe pays,
    the next round drafts as well, and that number is halved.
    """

    def __init__(self) -> None:
        self.idle, self.patience = 0, PROBE  # rounds since something was drafted, and how many there may be
        self.probing = False  # this round drafts although it does not seem to pay
        self.succeeded = False  # the last round was a probe that paid

    def start_round(self, *, pays: bool, may_pay: bool) -> bool:
        """Whether to draft.

        Args:
            pays: whether drafting pays, as far as is known.
            may_pay: whether it would pay if all was accepted.
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
        """Whether a round that drafted gave at least as many tokens as the rate yields in its time."""
        if paid and self.probing:
            self.patience, self.succeeded = max(self.patience // 2, PROBE), True


class PricedController(LengthController):
    """Keeps the rate of tokens per second on a text, by a cost model that may change.

    Attributes:
        cost: the current cost model; None if the controller does not go by costs.
        batch: costs by the number of requests that share a round, if there are any.
        running: what the rounds' wall times tell of it; None if it does not adapt.
        rate: tokens per second on the text so far, by ``cost``.
        probes: when it drafts although that does not seem to pay.
    """

    cost: CostModel | None
    batch: BatchCosts | None
    running: RunningCost | None
    rate: RunningRatio
    probes: Probes

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:
        if self.running is not None:
            self.running.add(tokens, forwards, seconds)

    def untimed(self) -> None:
        if self.running is not None:
            self.running.skip()

    def _shared_cost(self, rows: int) -> CostModel | None:
        """The costs of rounds that ``rows`` requests share; None where they are those by which it goes already."""
        if self.running is not None:
            before, self.running = self.running, self.running.at(rows)
            return None if before is self.running else self.running.cost
        return None if self.batch is None else self.batch.at(rows)

    def begin_draft(self, *, pays: bool, may_pay: bool) -> bool:
        """Decide for ``start_round`` if this round drafts. A round without a draft is counted as one token.

        Now and then a round drafts as a probe although that does not seem to pay, to notice when it pays again.
        With adapting costs a round now and then also does the opposite to measure what it takes then.

        Args:
            pays: whether drafting pays, as far as is known.
            may_pay: whether it would pay if all tokens were accepted.
        """
        if self.running is None:
            drafts = self.probes.start_round(pays=pays, may_pay=may_pay)
        elif pays and self.running.alone_is_due(self.rate.value):
            drafts = False
        else:
            drafts = self.probes.start_round(pays=pays, may_pay=may_pay) or self.running.draft_is_due()
        if drafts:
            return True
        self._earn(1.0, 0)
        return False

    def _end_draft(self, accepted: int, seconds: float) -> None:
        """A round that drafted ended; ``seconds`` is its time by the cost model."""
        self.probes.end_round(accepted + 1.0 >= self.rate.value * seconds)

    def _earn(self, tokens: float, drafted: int) -> None:
        """Add a round that gave ``tokens``; its time and that of earlier rounds is by the current costs."""
        if self.running is not None:
            self._follow(self.running.cost, drafted)
        if self.cost is not None:
            self.rate.add(tokens, self.cost.round(drafted))

    def _follow(self, cost: CostModel, drafted: int) -> None:
        """Use ``cost`` from now on; the rate so far is converted by the costs of a round of ``drafted`` tokens."""
        if self.cost is not None and cost is not self.cost:
            self.rate.below *= cost.round(drafted) / self.cost.round(drafted)
            self.cost = cost


class TrainedLength(PricedController):
    """A priced controller that knows the mean acceptance of its training data before the first round.

    The base of a user's controllers that stop by costs. A subclass calls ``begin_draft`` in ``start_round``, compares
    in ``observe`` the gain of a token with ``rate.value`` tokens per second times its seconds by ``cost``, and calls
    ``super()`` in other methods that it overrides.

    The rate is estimated on the current text with the times of the cost model. Wall times are used only with ``adapt``;
    otherwise drafts are determined by the seed.

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

    def repriced(
        self, cost: CostModel | None = None, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> TrainedLength:
        other = copy(self)
        TrainedLength.__init__(other, self.mean, cost or self.cost, adapt=adapt, batch=batch)
        return other

    def start_text(self) -> None:
        if self.running is not None and self.running.cost is not self.cost:
            self.cost = self.running.cost
            self.prior_rate = steady_rate(self.mean, self.cost)
        # New objects, since the rows of a batch are copies of one controller.
        self._begin_rate()
        if self.running is None:
            self.probes = Probes()
        self.begun = False

    def end_round(self, drafted: int, accepted: int) -> None:
        self._earn(accepted + 1.0, drafted)
        self._end_draft(accepted, self.cost.round(drafted))

    def shared_by(self, rows: int) -> None:
        cost = self._shared_cost(rows)
        if cost is None or cost is self.cost:
            return
        if self.begun:
            self._follow(cost, 0)
        else:  # what drafts gain alone says little about rounds that others share
            self.cost, self.prior_rate = cost, steady_rate(self.mean, cost)
            self._begin_rate()

    def _begin_rate(self) -> None:
        self.rate = RunningRatio(self.prior_rate, PRIOR * self.cost.round(0), ROUNDS)  # tokens per second
