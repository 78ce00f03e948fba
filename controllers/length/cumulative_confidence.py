"""Stop when the draft's probability of all drafted tokens falls below θ: ``Π q(y_i) < θ``."""

from __future__ import annotations

from ...common.errors import InputError
from .base import LengthController, Step


class CumulativeConfidence(LengthController):
    def __init__(self, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"cumulative-confidence:{threshold}: the threshold must be in [0, 1]")
        self.threshold = threshold
        self.product = 1.0

    def start_round(self) -> bool:
        self.product = 1.0
        return True

    def observe(self, step: Step) -> bool:
        self.product *= step.confidence()
        return self.product >= self.threshold
