"""Acceptance predicted from the draft's confidence and the text, fitted while decoding: ``â_k = σ(ω·x + β_k)``.

As in vLLM's OnlineAcceptanceEstimator, Newton's method refits a logistic model of ``logit(max q)``, with an intercept
β_k for each position k of a draft, to verified tokens. Here x also contains the text's n-gram match of the drafted
token, which predicts acceptance better than the confidence in texts that repeat themselves. Drafting continues as in
:mod:`.rate_optimal` while ``E[s_{k+1}] ≥ λ·(t_draft + b)``, or stops by a threshold on Π â.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from operator import mul

import torch
import torch.nn.functional as F

from ...common.errors import InputError
from .. import MAX_DRAFT
from ..acceptance.calibration import newton_weights, sigmoid
from ..acceptance.step import Step
from .cost_based import CostBasedController, Probes
from .cost_model import BatchCosts, CostModel
from .rate import RunningRatio, best_continuation, drafting_pays, steady_rate
from .rule import Rule
from .running_cost import RunningCost

POSITIONS = 8  # number of intercepts; later positions share the last one
PRIOR_FIT = [1.0, 0.0, 0.0, 0.0] + [0.0] * POSITIONS  # ω, then β_1, β_2, …: â is the confidence
REFIT = 100  # verified tokens between two fits
WINDOW = 1000  # number of latest verified tokens that a fit uses
NEWTON_STEPS = 8  # Newton steps per fit
RIDGE = 1.0  # weight of the prior
MIN_CONFIDENCE = 1e-4  # confidences are clipped to [MIN_CONFIDENCE, 1 - MIN_CONFIDENCE]
ACCEPTANCE, WEIGHT = 0.6, 16.0  # initial mean acceptance, and its weight in verified tokens
MEMORY = 256.0  # memory of the mean acceptances, in verified tokens
ROUNDS, PRIOR = 128.0, 16.0  # memory of the rate, and weight of the initial rate, in rounds

Evidence = tuple[float, float, float, float]  # x, see :func:`step_evidence`


class OnlineConfidence(CostBasedController):
    """Stops by acceptance predictions that are learned from every verified token, without prior training.

    The fitted model belongs to the decoder: it is kept between texts and shared by the texts of a batch. The drafts and
    the text of a seed depend on it; the distribution of the text does not. The rate λ belongs to a text.

    Args:
        threshold: stop when Π â falls below this threshold.
        cost: stop by this cost model instead.
        adapt: use ``cost`` only initially, and correct it by the rounds' wall times. Drafts then depend on the
            machine's speed; the distribution of the text does not.
        batch: costs by the number of requests that share a round, used instead of ``cost``.

    Raises:
        InputError: both ``threshold`` and ``cost`` are set, or neither is; or the threshold is not in [0, 1].
    """

    def __init__(
        self,
        threshold: float | None = None,
        cost: CostModel | None = None,
        *,
        adapt: bool = False,
        batch: BatchCosts | None = None,
    ) -> None:
        if (threshold is None) == (cost is None):
            raise InputError(
                "length='online-confidence': give either a cost model (--cost) or a threshold, as in "
                "'online-confidence:0.4'"
            )
        if threshold is not None and not 0 <= threshold <= 1:
            raise InputError(f"length='online-confidence:{threshold:g}': the threshold must be in [0, 1]")
        self.stop_below, self.cost, self.batch = threshold or 0.0, cost, batch
        self.running = RunningCost(cost) if adapt and cost is not None else None
        self.fit = AcceptanceFit()
        self.start_text()

    def with_costs(
        self, cost: CostModel | None = None, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> OnlineConfidence:
        return self if self.cost is None else OnlineConfidence(cost=cost or self.cost, adapt=adapt, batch=batch)

    def start_text(self) -> None:
        if self.running is not None:
            self.cost = self.running.cost
        if self.cost is not None:
            rate = steady_rate(ACCEPTANCE, self.cost)
            self.rate = RunningRatio(rate, PRIOR * self.cost.round(0), ROUNDS)  # tokens per second
        self.probes = Probes()
        self.survival = 1.0
        self.evidence: list[Evidence] = []  # of this round's tokens

    def shared_by(self, rows: int) -> None:
        cost = self._shared_cost(rows)
        if cost is not None:
            self._follow(cost, 0)

    def start_round(self) -> bool:
        self.survival, self.evidence = 1.0, []
        if self.cost is None:
            return True
        pays = drafting_pays(self.fit.mean(1), self.fit.mean(2), self.rate.value, self.cost)
        return self.begin_draft(pays=pays, may_pay=not self.cost.never_pays)

    def observe(self, step: Step) -> bool:
        self.evidence.append(step_evidence(step))
        self.survival *= self.fit.probability(step.index, self.evidence[-1])
        if self.cost is None:
            return self.survival >= self.stop_below
        survival, later = self.survival * self.fit.mean(step.index + 1), self.fit.mean(step.index + 2)
        rest = max(1, MAX_DRAFT - step.index)
        return best_continuation(survival, later, self.price_rate, self.cost, step.index, rest).tokens > 0

    def end_round(self, drafted: int, accepted: int) -> None:
        self._earn(accepted + 1.0, drafted)
        if self.cost is not None:
            self._end_draft(accepted, self.cost.round(drafted))
        for position, evidence in enumerate(self.evidence[: accepted + 1], 1):  # up to the first rejected token
            if position <= drafted:
                self.fit.add(position, evidence, position <= accepted)


def step_evidence(step: Step) -> Evidence:
    """Return the features x of a drafted token, from which ``AcceptanceFit`` predicts its acceptance.

    The first feature is the log-odds of the draft's highest probability, ``logit(max q)``. The probability is clipped
    to ``[MIN_CONFIDENCE, 1 - MIN_CONFIDENCE]``. The other features describe the n-gram match of the token, see
    :class:`.NgramMatch`: ``agrees`` and ``matches`` are lengths in tokens, and ``share`` is between 0 and 1.
    """
    confidence = min(max(step.top_probability(), MIN_CONFIDENCE), 1.0 - MIN_CONFIDENCE)
    match = step.match()
    return math.log(confidence / (1.0 - confidence)), match.agrees, match.matches, match.share


class AcceptanceFit:
    """The logistic model and the verified tokens that it is fitted to; all copies of a controller share it.

    Attributes:
        parameters: ω, then β_1, β_2, …
        verified_tokens: position, x and acceptance of the latest verified tokens.
        means: mean acceptance by position.
        tokens_since_fit: number of verified tokens since the last fit.
    """

    def __init__(self) -> None:
        self.parameters = PRIOR_FIT
        self.verified_tokens: deque[tuple[int, Evidence, bool]] = deque(maxlen=WINDOW)
        self.means = [RunningRatio(ACCEPTANCE, WEIGHT, MEMORY) for _ in range(POSITIONS)]
        self.tokens_since_fit = 0

    def probability(self, position: int, evidence: Evidence) -> float:
        """Return â of a token at ``position``, from 1, with x = ``evidence``."""
        beta = self.parameters[len(evidence) - 1 + min(position, POSITIONS)]
        return sigmoid(sum(map(mul, self.parameters, evidence), beta))

    def mean(self, position: int) -> float:
        """Return the mean acceptance of tokens at ``position``."""
        return self.means[min(position, POSITIONS) - 1].value

    def add(self, position: int, evidence: Evidence, accepted: bool) -> None:
        """Add a token that was verified after all earlier ones of its draft were accepted."""
        self.verified_tokens.append((min(position, POSITIONS), evidence, accepted))
        self.means[min(position, POSITIONS) - 1].add(accepted, 1.0)
        self.tokens_since_fit += 1
        if self.tokens_since_fit == REFIT:
            self.tokens_since_fit = 0
            self.parameters = refit(self.parameters, list(self.verified_tokens))


def refit(parameters: list[float], tokens: Sequence[tuple[int, Evidence, bool]]) -> list[float]:
    """Return the parameters of a ridge logistic regression, by Newton's method.

    Args:
        parameters: the initial parameters.
        tokens: N tokens: (position, x, accepted).
    """
    first = torch.tensor(PRIOR_FIT, dtype=torch.float64)
    x = torch.tensor([evidence for _, evidence, _ in tokens], dtype=torch.float64)
    positions = F.one_hot(torch.tensor([position - 1 for position, *_ in tokens]), POSITIONS)
    rows = torch.cat([x, positions], 1)  # (N, P)
    labels = torch.tensor([accepted for *_, accepted in tokens], dtype=torch.float64)  # (N,)
    solution = torch.tensor(parameters, dtype=torch.float64)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(rows @ solution)
        gradient = rows.T @ (p - labels) + RIDGE * (solution - first)
        hessian = (rows.T * newton_weights(p, labels)) @ rows + RIDGE * torch.eye(len(first), dtype=torch.float64)
        solution = solution - torch.linalg.solve(hessian, gradient)
    return solution.tolist()


RULE = Rule("online-confidence", OnlineConfidence, "0.4", optional=True, uses_costs=True)
