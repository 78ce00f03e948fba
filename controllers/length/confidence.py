"""Stopping by the draft's probability of a token."""

from __future__ import annotations

from ..acceptance.step import Step
from .base import LengthController
from .rule import Rule, check_threshold


class Confidence(LengthController):
    """Stops after a token of low draft probability, ``q(y) < θ`` (transformers' assistant confidence threshold).

    Args:
        threshold: θ in [0, 1].

    Raises:
        InputError: the threshold is out of range.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = check_threshold("confidence", threshold)

    def observe(self, step: Step) -> bool:
        return step.confidence() >= self.threshold


RULE = Rule("confidence", Confidence, "0.4")
