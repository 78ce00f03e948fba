"""Stopping by predicted acceptance and a threshold: the rule of trained controllers without costs."""

from __future__ import annotations

from torch import Tensor

from ...common.errors import InputError
from ..acceptance.predictor import AcceptancePredictor
from ..acceptance.step import Step
from ..sampling import SamplingParams
from .base import LengthController


class AcceptanceLength(LengthController):
    """SpecDec++ (Huang et al. 2024, Algorithm 2): stop if the probability of a rejection exceeds h, ``1 - Π â_i > h``.

    With a predictor of lag 1, the product at y_{i+1} runs to i.

    Args:
        predictor: predicts â_i.
        threshold: h in [0, 1].

    Raises:
        InputError: the threshold is out of range.
    """

    def __init__(self, predictor: AcceptancePredictor, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold={threshold}: the acceptance head's stopping threshold must be in [0, 1]")
        self.predictor, self.threshold = predictor, threshold
        self.survival = 1.0

    @property
    def draft_exponent(self) -> float:
        return self.predictor.draft_exponent

    def check_sampling(self, sampling: SamplingParams) -> None:
        self.predictor.check_sampling(sampling)

    def check_verifier(self, verifier: str) -> None:
        self.predictor.check_verifier(verifier)

    def state_values(self, hidden: Tensor) -> Tensor | None:
        return self.predictor.state_values(hidden)

    def start_round(self) -> bool:
        self.survival = 1.0
        return True

    def observe(self, step: Step) -> bool:
        if step.index > self.predictor.lag:  # the state before the first token does not belong to a drafted token
            self.survival *= self.predictor.predict(step)
        return 1.0 - self.survival <= self.threshold
