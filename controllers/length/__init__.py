"""Length controllers, and their names on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable

from ...common.errors import InputError, is_whole
from .. import MAX_DRAFT
from ..acceptance.feature_model import FeaturePredictor
from ..acceptance.lag_free_head import LagFreePredictor
from ..acceptance.predictor import AcceptancePredictor
from ..acceptance.specdec_head import HeadPredictor
from ..acceptance.step import Step
from .bandit import Bandit
from .base import LengthController
from .cost_model import CostModel
from .online_confidence import OnlineConfidence
from .oracle import Oracle
from .own import load_own, names_own, own_class
from .priced import PricedController
from .rate_optimal import RateOptimal
from .rules import (
    AcceptanceLength,
    AdaptiveLength,
    Confidence,
    CumulativeConfidence,
    Entropy,
    Fallback,
    Fixed,
    Heuristic,
)
from .trained import load_trained

__all__ = [
    "MAX_DRAFT",
    "AcceptanceLength",
    "AcceptancePredictor",
    "AdaptiveLength",
    "Bandit",
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
    "OnlineConfidence",
    "Oracle",
    "RateOptimal",
    "Step",
    "load_rule",
    "load_trained",
    "names_class",
    "names_rule",
    "parse_rule",
    "takes_cost",
]

# Rule's name → its class, and an example of its parameter for messages.
RULES: dict[str, tuple[Callable[[float], LengthController], str]] = {
    "heuristic": (Heuristic, "5"),
    "confidence": (Confidence, "0.4"),
    "cumulative-confidence": (CumulativeConfidence, "0.4"),
    "entropy": (Entropy, "0.5"),
    "fallback": (Fallback, "0.6"),
    "adaptive-length": (AdaptiveLength, "4"),
    "online-confidence": (OnlineConfidence, "0.4"),
}
# Names of rules that need no parameter.
PLAIN_RULES: dict[str, Callable[[], LengthController]] = {
    "none": lambda: Fixed(0),
    "oracle": Oracle,
    "bandit": Bandit,
    "adaptive-length": AdaptiveLength,
}
NUMBER = re.compile(r"-?\d*\.?\d+")  # what follows a rule's name; no folder or hub id ends in ":" and a number
PRICED = "online-confidence"  # uses a cost model if it is given no threshold


def names_rule(spec: str) -> bool:
    """Whether ``spec`` names a rule, also one of the user's, rather than a trained controller."""
    return _built_in(spec) or names_own(spec)


def names_class(spec: str) -> bool:
    """Whether ``spec`` names a rule of the user's: a class, see :mod:`.own`."""
    return not _built_in(spec) and names_own(spec)


def _built_in(spec: str) -> bool:
    return spec in PLAIN_RULES or is_whole(spec.removeprefix("-")) or spec.partition(":")[0] in RULES


def takes_cost(spec: str) -> bool:
    """Whether the controller ``spec`` can use a cost model: a trained one, ``"online-confidence"``, or one's own."""
    if _built_in(spec):
        return spec == PRICED
    return not names_class(spec) or issubclass(own_class(spec), PricedController)


def load_rule(spec: str, cost: CostModel | None = None) -> LengthController | None:
    """:func:`parse_rule`, which also imports a class of the user: see :mod:`.own`. Not for what a request names.

    Raises:
        InputError: a rule's parameter is wrong, or the class cannot be imported or made.
    """
    return load_own(spec).repriced(cost) if names_class(spec) else parse_rule(spec, cost)


def parse_rule(spec: str, cost: CostModel | None = None) -> LengthController | None:
    """The rule named by ``spec``: ``"4"``, ``"none"``, ``"cumulative-confidence:0.4"`` …; None if it is not a rule.

    Args:
        cost: cost model for the rule ``"online-confidence"``.

    Raises:
        InputError: a rule's parameter is missing, malformed or out of range.
    """
    if spec == PRICED:
        return OnlineConfidence(cost=cost)
    if spec in PLAIN_RULES:
        return PLAIN_RULES[spec]()
    if is_whole(spec.removeprefix("-")):
        return Fixed(int(spec))
    name, _, parameter = spec.partition(":")
    if name not in RULES:
        if NUMBER.fullmatch(parameter or spec):
            rules = ", ".join(dict.fromkeys([*PLAIN_RULES, *RULES]))
            raise InputError(f"length={spec!r}: no such rule; give a whole number or one of {rules}")
        return None
    make, example = RULES[name]
    try:
        value = float(parameter)
    except ValueError:
        raise InputError(f"length={spec!r}: give the rule's number, as in '{name}:{example}'") from None
    return make(value)
