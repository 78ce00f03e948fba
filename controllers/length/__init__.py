"""Length controllers, and the short names they go by on the command line."""

from __future__ import annotations

from ..errors import InputError
from .acceptance import AcceptanceLength
from .base import MAX_DRAFT, LengthController, Step
from .cumulative_confidence import CumulativeConfidence
from .fixed import Fixed

__all__ = [
    "MAX_DRAFT",
    "AcceptanceLength",
    "CumulativeConfidence",
    "Fixed",
    "LengthController",
    "Step",
    "parse_rule",
]

RULES = {"cumulative-confidence": CumulativeConfidence}


def parse_rule(spec: str) -> LengthController | None:
    """The rule ``spec`` names: ``"4"``, ``"none"`` or ``"cumulative-confidence:0.4"``; None if it names no rule.

    Raises:
        InputError: a rule's parameter is missing, malformed or out of range.
    """
    if spec == "none":
        return Fixed(0)
    if spec.lstrip("-").isdigit():
        return Fixed(int(spec))
    name, _, parameter = spec.partition(":")
    if name not in RULES:
        return None
    try:
        value = float(parameter)
    except ValueError:
        raise InputError(f"length={spec!r}: give the rule's threshold, as in '{name}:0.5'") from None
    return RULES[name](value)
