"""BiLD's length rule, which is combined with the verification rule ``bild``."""

from __future__ import annotations

from ..acceptance.step import Step
from .base import LengthController
from .rule import Rule, check_threshold

MAX_FALLBACK = 10  # maximum number of tokens of a draft


class Fallback(LengthController):
    """Stops when ``max_v q(v) < θ``, or after ten tokens (BiLD, Kim et al. 2023, §3.2).

    Args:
        threshold: θ in [0, 1].

    Raises:
        InputError: the threshold is out of range.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = check_threshold("fallback", threshold)

    def observe(self, step: Step) -> bool:
        return step.index < MAX_FALLBACK and step.top_probability() >= self.threshold


RULE = Rule("fallback", Fallback, "0.6")
