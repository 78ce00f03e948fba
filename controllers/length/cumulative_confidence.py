"""Stopping by the draft's probability of all tokens of the draft."""

from __future__ import annotations

from ..acceptance.step import Step
from .base import LengthController
from .rule import Rule, check_threshold


class CumulativeConfidence(LengthController):
    """Stops when the draft's probability of all tokens of the draft falls below θ: ``Π q(y_i) < θ``.

    Args:
        threshold: θ in [0, 1].

    Raises:
        InputError: the threshold is out of range.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = check_threshold("cumulative-confidence", threshold)
        self.product = 1.0

    def start_round(self) -> bool:
        self.product = 1.0
        return True

    def observe(self, step: Step) -> bool:
        self.product *= step.confidence()
        return self.product >= self.threshold


RULE = Rule("cumulative-confidence", CumulativeConfidence, "0.4")
