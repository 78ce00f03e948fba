"""SpecDec++ (Huang et al. 2024, Algorithm 2): stop when a rejection so far is too likely, ``1 - Π â_i > h``.

The head is one token late: at y_{i+1} the product runs to i.
"""

from __future__ import annotations

from ..acceptance.predictor import AcceptancePredictor
from ..errors import InputError
from ..sampling import SamplingParams
from .base import LengthController, Step


class AcceptanceLength(LengthController):
    def __init__(self, predictor: AcceptancePredictor, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold={threshold}: the acceptance head's stopping threshold must be in [0, 1]")
        self.predictor, self.threshold = predictor, threshold
        self.survival = 1.0

    def check_sampling(self, sampling: SamplingParams) -> None:
        self.predictor.check_sampling(sampling)

    def start_round(self) -> bool:
        self.survival = 1.0
        return True

    def observe(self, step: Step) -> bool:
        if step.index > self.predictor.lag:  # the state before the first token belongs to a token that is no draft
            self.survival *= self.predictor.predict(step).accept
        return 1.0 - self.survival <= self.threshold
