"""Acceptance predicted from the draft's confidence, fitted while decoding: ``â_k = σ(ω·logit(max q) + β_k)``.

The idea of vLLM's OnlineAcceptanceEstimator: a logistic model of one slope ω and an intercept β_k for each position k
of a draft, refitted by Newton steps as verified tokens come in. Stopping is that of :mod:`.rate_optimal`, draft on
while ``E[s_{k+1}] ≥ λ·(t_draft + b)``, or by a threshold on Π â.
"""

from __future__ import annotations

import math
from collections import deque

import torch

from ..acceptance.calibration import sigmoid
from ..errors import InputError
from .base import LengthController, Step
from .cost_model import CostModel
from .rate import RunningRatio, steady_rate

POSITIONS = 8  # those from the last one on share an intercept
REFIT = 100  # verified tokens between two fits
WINDOW = 1000  # verified tokens that a fit looks back on
STEPS = 4  # Newton steps of a fit
RIDGE = 1.0  # weight of the first parameters, ω = 1 and β = 0: the confidence itself
LARGEST_STEP = 2.0  # that a parameter is moved by at once
LEAST = 1e-4  # confidences are kept this far from 0 and 1
ACCEPTANCE, WEIGHT = 0.6, 16.0  # mean acceptance at first, and the verified tokens it counts for
MEMORY = 256.0  # verified tokens of the mean acceptances
ROUNDS, PRIOR = 128.0, 16.0  # memory of the rate, and rounds that the first rate counts for
PROBE = 16  # rounds without a draft after which one is drafted all the same


class OnlineConfidence(LengthController):
    """Needs no training: it learns from every verified token.

    What is learnt of acceptance is the decoder's: each text goes on with what those before it have shown, and the texts
    of a batch learn together. What a seed drafts, and so its text, depends on them; the distribution of the text does
    not. The rate λ is each text's own.

    Args:
        threshold: stop where Π â falls below it.
        cost: stop by what tokens cost instead.

    Raises:
        InputError: not one of the two is given, or the threshold is out of range.
    """

    def __init__(self, threshold: float | None = None, cost: CostModel | None = None) -> None:
        if (threshold is None) == (cost is None):
            raise InputError(
                "length='online-confidence': give what tokens cost (--cost), or a threshold, as in "
                "'online-confidence:0.4', and not both"
            )
        if threshold is not None and not 0 <= threshold <= 1:
            raise InputError(f"online-confidence:{threshold}: the threshold must be in [0, 1]")
        self.stop_below, self.cost = threshold or 0.0, cost
        self.fit = AcceptanceFit()
        self.start_text()

    def start_text(self) -> None:
        if self.cost is not None:
            rate = steady_rate(ACCEPTANCE, self.cost)
            self.rate = RunningRatio(rate, PRIOR * self.cost.round(0), ROUNDS)  # tokens per second
        self.idle = 0  # rounds since something was drafted
        self.survival = 1.0
        self.logits: list[float] = []  # of the confidences of this round's tokens

    def start_round(self) -> bool:
        self.survival, self.logits = 1.0, []
        if self.cost is None or self.fit.mean(1) >= self._price(self.cost) or self.idle == PROBE:
            self.idle = 0
            return True
        self.idle += 1
        self.rate.add(1.0, self.cost.round(0))
        return False

    def observe(self, step: Step) -> bool:
        confidence = min(max(step.top_probability(), LEAST), 1.0 - LEAST)
        self.logits.append(math.log(confidence / (1.0 - confidence)))
        self.survival *= self.fit.probability(step.index, self.logits[-1])
        if self.cost is None:
            return self.survival >= self.stop_below
        return self.survival * self.fit.mean(step.index + 1) >= self._price(self.cost)

    def end_round(self, drafted: int, accepted: int) -> None:
        if self.cost is not None:
            self.rate.add(accepted + 1.0, self.cost.round(drafted))
        for position, logit in enumerate(self.logits[: accepted + 1], 1):  # up to the first that was rejected
            if position <= drafted:
                self.fit.add(position, logit, position <= accepted)

    def _price(self, cost: CostModel) -> float:
        """λ·(t_draft + b): what drafting one token more must yield."""
        return self.rate.value * cost.per_token


class AcceptanceFit:
    """The logistic model, and the verified tokens it is fitted to. Shared by the copies of a controller.

    Attributes:
        parameters: ω, then β_1, β_2, …
    """

    def __init__(self) -> None:
        self.parameters = [1.0] + [0.0] * POSITIONS
        self.seen: deque[tuple[int, float, bool]] = deque(maxlen=WINDOW)
        self.means = [RunningRatio(ACCEPTANCE, WEIGHT, MEMORY) for _ in range(POSITIONS)]
        self.new = 0  # tokens since the last fit

    def probability(self, position: int, logit: float) -> float:
        """â of a token at ``position``, 1 for the first, whose confidence has this ``logit``."""
        return sigmoid(self.parameters[0] * logit + self.parameters[min(position, POSITIONS)])

    def mean(self, position: int) -> float:
        """Mean acceptance of tokens at ``position``."""
        return self.means[min(position, POSITIONS) - 1].value

    def add(self, position: int, logit: float, accepted: bool) -> None:
        """A token was verified, and all before it were accepted."""
        self.seen.append((min(position, POSITIONS), logit, accepted))
        self.means[min(position, POSITIONS) - 1].add(accepted, 1.0)
        self.new += 1
        if self.new == REFIT:
            self.new = 0
            self.parameters = refitted(self.parameters, list(self.seen))


def refitted(parameters: list[float], seen: list[tuple[int, float, bool]]) -> list[float]:
    """Newton steps of ridge logistic regression from ``parameters``, on (position, logit, accepted) of N tokens."""
    rows = torch.zeros(len(seen), 1 + POSITIONS, dtype=torch.float64)  # (N, P)
    rows[:, 0] = torch.tensor([logit for _, logit, _ in seen], dtype=torch.float64)
    rows[range(len(seen)), [position for position, _, _ in seen]] = 1.0
    labels = torch.tensor([accepted for *_, accepted in seen], dtype=torch.float64)  # (N,)
    first = torch.tensor([1.0] + [0.0] * POSITIONS, dtype=torch.float64)
    found = torch.tensor(parameters, dtype=torch.float64)
    for _ in range(STEPS):
        p = torch.sigmoid(rows @ found)
        gradient = rows.T @ (p - labels) + RIDGE * (found - first)
        hessian = (rows.T * (p * (1 - p))) @ rows + RIDGE * torch.eye(1 + POSITIONS, dtype=torch.float64)
        found = found - torch.linalg.solve(hessian, gradient).clamp(-LARGEST_STEP, LARGEST_STEP)
    return found.tolist()
