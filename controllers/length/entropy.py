"""Stopping by the entropy of the draft's distribution."""

from __future__ import annotations

import math

from ...common.errors import InputError
from ..acceptance.step import Step
from .base import LengthController
from .rule import Rule


class Entropy(LengthController):
    """AdaEDL (Agrawal et al. 2024): stop when the draft's entropy is high, ``1 - sqrt(γ·H(q)) < θ``, H in nats.

    The left side is a lower bound of the acceptance probability for a γ that depends on the pair. The paper uses
    γ = 0.2.

    Args:
        threshold: θ, at most 1.
        gamma: γ ≥ 0.

    Raises:
        InputError: a number is out of range.
    """

    def __init__(self, threshold: float, gamma: float = 0.2) -> None:
        if not (threshold <= 1 and math.isfinite(threshold)):
            raise InputError(f"length='entropy:{threshold:g}': the threshold must be a finite number up to 1")
        if not (gamma >= 0 and math.isfinite(gamma)):
            raise InputError(f"gamma={gamma}: must be a finite number ≥ 0")
        self.threshold, self.gamma = threshold, gamma

    def observe(self, step: Step) -> bool:
        return 1.0 - math.sqrt(self.gamma * step.entropy()) >= self.threshold


RULE = Rule("entropy", Entropy, "0.5")
