"""Rate-optimal stopping: draft while the next token's expected gain covers its cost, ``E[s_{k+1}] ≥ λ·(t_draft + b)``.

λ is the rate of tokens per second, b the cost of verifying one more token. If b depends on the number of tokens
(:mod:`.verification_shape`), a draft goes on if the gains of the next n tokens cover their costs for some n. By the
renewal-reward theorem, λ* of :mod:`.rate` is the optimal λ. No threshold needs tuning: the threshold is λ*·t_draft,
which SpecDec++ (Huang et al. 2024, Theorem 3.1) determines by grid search.

The gain ``E[s_{k+1}] = ŝ_k·ā`` never increases while ā, the mean acceptance of later tokens, is constant: the survival
ŝ_k is a product of factors up to 1. Looking one token ahead is then enough if b is constant. A gain that uses the mean
of first tokens can be smaller than the next one; :func:`.rate.drafting_pays` therefore compares whole drafts at the
start of a round. The rule is only nearly optimal, because ā replaces a prediction for the next token, which is not
drawn yet.
"""

from __future__ import annotations

import math

from torch import Tensor

from .. import MAX_DRAFT
from ..acceptance.calibration import sigmoid
from ..acceptance.predictor import AcceptancePredictor
from ..acceptance.step import Step
from ..sampling import SamplingParams
from .cost_based import PRIOR, TrainedLength
from .cost_model import BatchCosts, CostModel
from .rate import RunningRatio, best_continuation, drafting_pays

TOKENS = 256.0  # memory of mean acceptances, in tokens
FIRST = 6.0  # weight of the initial mean acceptance of first tokens; small, so that a useless draft is noticed soon
SHIFT = 0.1  # step size of the shift, an online logistic regression of an intercept
CERTAIN = 1.0 - 1e-6  # at this price not even a token that is certainly accepted pays, within rounding
SHARED = 64.0  # memory of the mean acceptance of first tokens if texts share it


class RateOptimal(TrainedLength):
    """Stops when the expected gain of another token is below its cost.

    A token without a prediction counts with the mean acceptance of the text so far, separately for first and later
    tokens of drafts. Predictions are shifted by a log-odds learned on the text, which corrects over- or underconfidence
    on domains outside the training data. If drafting does not pay with the mean acceptance of first tokens, the
    controller drafts only in occasional probes.

    With ``adapt``, texts also share the mean acceptance of first tokens and the time of the next probe, because a short
    text is too short to learn that drafts do not pay.

    Args:
        predictor: predicts acceptance; its probabilities must be calibrated.
        cost, adapt, batch: as for :class:`.TrainedLength`.
    """

    def __init__(
        self, predictor: AcceptancePredictor, cost: CostModel, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> None:
        self.predictor = predictor
        self.first = RunningRatio(predictor.mean, FIRST, SHARED)  # acceptances per first token of a draft
        super().__init__(predictor.mean, cost, adapt=adapt, batch=batch)

    def with_costs(
        self, cost: CostModel | None = None, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> RateOptimal:
        return RateOptimal(self.predictor, cost or self.cost, adapt=adapt, batch=batch)

    @property
    def draft_exponent(self) -> float:
        return self.predictor.draft_exponent

    def check_sampling(self, sampling: SamplingParams) -> None:
        self.predictor.check_sampling(sampling)

    def start_text(self) -> None:
        super().start_text()
        if self.running is None:
            self.first = RunningRatio(self.predictor.mean, FIRST, TOKENS)
        self.later = RunningRatio(self.predictor.mean, PRIOR, TOKENS)  # acceptances per later token
        self.shift = 0.0  # log-odds
        self.survival = 1.0  # product of the predicted probabilities so far
        self.predicted: list[float] = []  # predicted probabilities

    def start_round(self) -> bool:
        if self.cost.never_pays and self.running is None:
            return False  # the price of a token is at least 1
        self.survival, self.predicted = 1.0, []
        pays = drafting_pays(self.first.value, self.later.value, self.rate.value, self.cost)
        return self.begin_draft(pays=pays, may_pay=self._least_price() < CERTAIN)

    def state_values(self, hidden: Tensor) -> Tensor | None:
        return self.predictor.state_values(hidden)

    def observe(self, step: Step) -> bool:
        lag = self.predictor.lag
        if step.index > lag:
            self.predicted.append(self._shifted(self.predictor.predict(step)))
            self.survival *= self.predicted[-1]
        next_survival = self.survival * self.later.value
        if lag:  # the current token has no prediction yet
            next_survival *= self.first.value if step.index == 1 else self.later.value
        return self._pays(next_survival, step.index)

    def end_round(self, drafted: int, accepted: int) -> None:
        self._earn(accepted + 1.0, drafted)
        self._count_draft(accepted, self.cost.round(drafted))
        for position in range(2, min(drafted, accepted + 1) + 1):  # verified after all earlier ones were accepted
            self.later.add(position <= accepted, 1.0)
        for position, accept in enumerate(self.predicted[: accepted + 1]):
            self.shift += SHIFT * ((position < accepted) - accept)

    def _count_draft(self, accepted: int, seconds: float) -> None:
        """Learn from a round that drafted.

        Args:
            accepted: number of accepted tokens.
            seconds: time of the round by the cost model.
        """
        self.first.add(accepted > 0, 1.0)
        self._end_draft(accepted, seconds)

    def _shifted(self, accept: float) -> float:
        """Return the prediction ``accept``, shifted by the text's log-odds."""
        if not 0.0 < accept < 1.0:
            return accept
        return sigmoid(math.log(accept / (1.0 - accept)) + self.shift)

    def _pays(self, survival: float, drafted: int) -> bool:
        """Return true if another token after ``drafted`` tokens pays.

        Args:
            survival: the probability that the token and all tokens before it are accepted.
            drafted: number of drafted tokens.
        """
        rest = max(1, MAX_DRAFT - drafted)
        return best_continuation(survival, self.later.value, self.price_rate, self.cost, drafted, rest).tokens > 0

    def _least_price(self) -> float:
        """Return λ·(t_draft + b), the smallest mean gain of the tokens of a draft that pays."""
        return self.rate.value * (self.cost.t_draft + self.cost.least_added(0))
