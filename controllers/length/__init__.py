"""Length controllers, and the short names they go by on the command line."""

from __future__ import annotations

from collections.abc import Callable

from ..acceptance.feature_predictor import FeaturePredictor
from ..acceptance.head_predictor import HeadPredictor
from ..acceptance.lag_free_predictor import LagFreePredictor
from ..acceptance.predictor import AcceptancePredictor, Prediction
from ..errors import InputError
from .acceptance import AcceptanceLength
from .base import MAX_DRAFT, LengthController, Step
from .confidence import Confidence
from .cumulative_confidence import CumulativeConfidence
from .entropy import Entropy
from .fallback import Fallback
from .fixed import Fixed
from .heuristic import Heuristic
from .oracle import Oracle
from .rate_optimal import RateOptimal
from .trained import load_trained

__all__ = [
    "MAX_DRAFT",
    "AcceptanceLength",
    "AcceptancePredictor",
    "Confidence",
    "CumulativeConfidence",
    "Entropy",
    "Fallback",
    "FeaturePredictor",
    "Fixed",
    "HeadPredictor",
    "Heuristic",
    "LagFreePredictor",
    "LengthController",
    "Oracle",
    "Prediction",
    "RateOptimal",
    "Step",
    "load_trained",
    "parse_rule",
]

RULES: dict[str, Callable[[float], LengthController]] = {
    "heuristic": Heuristic,
    "confidence": Confidence,
    "cumulative-confidence": CumulativeConfidence,
    "entropy": Entropy,
    "fallback": Fallback,
}
EXAMPLES = {"heuristic": "5", "confidence": "0.4", "cumulative-confidence": "0.4", "entropy": "0.5", "fallback": "0.6"}


def parse_rule(spec: str) -> LengthController | None:
    """The rule ``spec`` names: ``"4"``, ``"none"``, ``"cumulative-confidence:0.4"`` …; None if it names no rule.

    Raises:
        InputError: a rule's parameter is missing, malformed or out of range.
    """
    if spec == "none":
        return Fixed(0)
    if spec == "oracle":
        return Oracle()
    if spec.lstrip("-").isdigit():
        return Fixed(int(spec))
    name, _, parameter = spec.partition(":")
    if name not in RULES:
        return None
    try:
        value = float(parameter)
    except ValueError:
        raise InputError(f"length={spec!r}: give the rule's number, as in '{name}:{EXAMPLES[name]}'") from None
    return RULES[name](value)
