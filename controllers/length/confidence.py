"""Stopping by the draft's probability of a token."""

from __future__ import annotations

from ..acceptance.step import Step
from .base import LengthController
from .rule import Rule, check_threshold


class Confidence(LengthController):
    """Stop at a token of low draft probability, ``q(y) < θ`` (transformers' assistant confidence threshold)."""

    def __init__(self, threshold: float) -> None:
        self.threshold = check_threshold("confidence", threshold)

    def observe(self, step: Step) -> bool:
        return step.confidence() >= self.threshold


RULE = Rule("confidence", Confidence, "0.4")
