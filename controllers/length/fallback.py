"""BiLD (Kim et al. 2023, §3.2): stop when ``max_v q(v) < θ``, or after ten tokens."""

from __future__ import annotations

from ...common.errors import InputError
from .base import LengthController, Step

MAX_LENGTH = 10


class Fallback(LengthController):
    def __init__(self, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"fallback:{threshold}: the threshold must be in [0, 1]")
        self.threshold = threshold

    def start_round(self) -> bool:
        return True

    def observe(self, step: Step) -> bool:
        return step.index < MAX_LENGTH and step.top_probability() >= self.threshold
