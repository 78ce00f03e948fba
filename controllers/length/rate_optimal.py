"""Rate-optimal stopping: draft on while the next token is worth what it costs, ``E[s_{k+1}] ≥ λ·(t_draft + b)``.

λ is the rate of tokens per second that the time could earn otherwise, b what verifying one token more costs. Renewal
reward makes λ* of :mod:`.rate` the right price, and there is no threshold to tune: what SpecDec++ (Huang et al. 2024,
Theorem 3.1) leaves to a grid search is λ*·t_draft.

``E[s_{k+1}] = ŝ_k·ā_{k+1}`` falls from token to token in expectation, survival being a product of factors up to 1. If
it falls for certain, as where the next acceptance is foreseen, looking one token ahead is exactly optimal. Where
ā_{k+1} is only a mean it may rise again after a token that turns out easier than expected, and looking further ahead
would gain a little; ``specpilot bench stopping`` says how little.
"""

from __future__ import annotations

import math

from ..acceptance.calibration import sigmoid
from ..acceptance.predictor import AcceptancePredictor
from ..sampling import SamplingParams
from .base import LengthController, Step
from .batch_costs import BatchCosts
from .cost_model import CostModel
from .rate import RunningRatio, steady_rate
from .running_cost import RunningCost

ROUNDS = 128.0  # memory of the rate; shorter ones follow a text more closely and are noisier
TOKENS = 256.0  # memory of mean acceptances
PRIOR = 16.0  # what the predictor's mean counts for at the beginning, in rounds or tokens
SHIFT = 0.1  # of the surprise at each verified token goes into the shift: logistic regression of an intercept alone
PROBE = 16  # rounds without a draft after which one is drafted all the same, to see whether it pays again
LONGEST = 128  # and the most, where one probe after another fails
SHARED = 64.0  # memory of the mean acceptance of first tokens where texts share it


class RateOptimal(LengthController):
    """Stops by what tokens cost and yield.

    The rate is the text's own so far, by the cost model's times: no clock is read, and the same seed drafts the same.
    Only with ``adapt`` do the costs follow the rounds' wall times: from one text to the next, for all rows of a batch.
    Tokens without a prediction count with the mean acceptance of this text so far, kept apart for the first tokens of
    drafts and later ones. Predictions are shifted by a log-odds learnt from this text: on kinds of text it was not
    trained on, a predictor may be over- or underconfident throughout. Where the mean acceptance of first tokens does
    not pay for drafting, nothing is drafted except for an occasional probe.

    With ``adapt`` texts also share the mean acceptance of first tokens and the time of the next probe: where drafts are
    no use, a short text has no time to find that out by itself.

    Args:
        predictor: judges the tokens drafted; its probabilities must be calibrated, for they are compared with costs.
        cost: what a draft step and a verification cost.
        adapt: take ``cost`` as a beginning, and learn from the rounds' times what it is now. What a seed drafts then
            depends on the machine's pace; the law of the text does not.
        batch: costs by the number of requests that share a round; they take the place of ``cost``.
    """

    def __init__(
        self, predictor: AcceptancePredictor, cost: CostModel, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> None:
        self.predictor, self.cost, self.batch = predictor, cost, batch
        self.running = RunningCost(cost) if adapt else None
        self.prior_rate = steady_rate(predictor.mean, cost)
        self.first = RunningRatio(predictor.mean, PRIOR, SHARED)  # acceptances per first token of a draft
        self.probes = Probes()
        self.start_text()

    def check_sampling(self, sampling: SamplingParams) -> None:
        self.predictor.check_sampling(sampling)

    def start_text(self) -> None:
        if self.running is not None and self.running.cost is not self.cost:
            self.cost = self.running.cost
            self.prior_rate = steady_rate(self.predictor.mean, self.cost)
        # New objects, not old ones reset: the rows of a batch are copies of one controller.
        self.rate = RunningRatio(self.prior_rate, PRIOR * self.cost.round(0), ROUNDS)  # tokens per second
        if self.running is None:
            self.first, self.probes = RunningRatio(self.predictor.mean, PRIOR, TOKENS), Probes()
        self.later = RunningRatio(self.predictor.mean, PRIOR, TOKENS)  # acceptances per later token
        self.shift = 0.0  # log-odds
        self.survival = 1.0  # of the tokens judged so far
        self.predicted: list[float] = []  # their chances

    def shared_by(self, rows: int) -> None:
        if self.batch is not None:
            self._follow(self.batch.at(rows), 0)

    def start_round(self) -> bool:
        self.survival, self.predicted = 1.0, []
        price = self._price()
        if self.probes.start_round(pays=self.first.value >= price, may_pay=price < 1.0):  # at 1 no draft can
            return True
        self._earn(1.0, 0)
        return False

    def observe(self, step: Step) -> bool:
        lag = self.predictor.lag
        then: float | None = None
        if step.index > lag:
            kept, then = self.predictor.predict(step)
            self.predicted.append(self._shifted(kept))
            self.survival *= self.predicted[-1]
        next_survival = self.survival * (self.later.value if then is None else self._shifted(then))
        if lag:  # the token in hand is not judged yet
            next_survival *= self.first.value if step.index == 1 else self.later.value
        return next_survival >= self._price()

    def end_round(self, drafted: int, accepted: int) -> None:
        self._earn(accepted + 1.0, drafted)
        self._count_first(accepted > 0)
        for position in range(2, min(drafted, accepted + 1) + 1):  # those verified with all before them kept
            self.later.add(position <= accepted, 1.0)
        for position, accept in enumerate(self.predicted[: accepted + 1]):
            self.shift += SHIFT * ((position < accepted) - accept)

    def timed(self, drafted: int, seconds: float) -> None:
        if self.running is not None:
            self.running.add(drafted, seconds)

    def _count_first(self, accepted: bool) -> None:
        """The first token of a draft was accepted or not."""
        self.first.add(accepted, 1.0)
        self.probes.end_round(accepted)

    def _earn(self, tokens: float, drafted: int) -> None:
        """A round gave so many ``tokens``; what it and those before took is told in the costs of today."""
        if self.running is not None:
            self._follow(self.running.cost, drafted)
        self.rate.add(tokens, self.cost.round(drafted))

    def _follow(self, cost: CostModel, drafted: int) -> None:
        """Go by ``cost`` from now on; the rate so far is converted, by what rounds of ``drafted`` tokens cost."""
        if cost is not self.cost:
            self.rate.below *= cost.round(drafted) / self.cost.round(drafted)
            self.cost = cost

    def _shifted(self, accept: float) -> float:
        if not 0.0 < accept < 1.0:
            return accept
        return sigmoid(math.log(accept / (1.0 - accept)) + self.shift)

    def _price(self) -> float:
        """λ·(t_draft + b): what drafting one token more must yield."""
        return self.rate.value * self.cost.per_token


class Probes:
    """When to draft although it does not seem to pay.

    After ``PROBE`` rounds without a draft, after twice as many where that fails, up to ``LONGEST``, and in the next
    round where it succeeds.
    """

    def __init__(self) -> None:
        self.idle, self.patience = 0, PROBE  # rounds since something was drafted, and how many there may be
        self.probing = False  # this round drafts although it does not seem to pay

    def start_round(self, *, pays: bool, may_pay: bool) -> bool:
        """Whether to draft."""
        self.probing = may_pay and not pays and self.idle >= self.patience
        if not (pays or self.probing):
            self.idle += 1
            return False
        self.patience = PROBE if pays else min(max(2 * self.patience, PROBE), LONGEST)
        self.idle = 0
        return True

    def end_round(self, accepted: bool) -> None:
        """Whether the first token drafted was accepted."""
        if accepted and self.probing:
            self.patience = 0
