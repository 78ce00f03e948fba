"""Stop at a token of low draft probability, ``q(y) < θ`` (transformers' assistant confidence threshold)."""

from __future__ import annotations

from ...common.errors import InputError
from .base import LengthController, Step


class Confidence(LengthController):
    def __init__(self, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"confidence:{threshold}: the threshold must be in [0, 1]")
        self.threshold = threshold

    def start_round(self) -> bool:
        return True

    def observe(self, step: Step) -> bool:
        return step.confidence() >= self.threshold
