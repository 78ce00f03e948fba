"""Length controllers, and their names on the command line.

A rule's file defines its ``RULE``, and ``FILES`` names it. Trained controllers are loaded by :mod:`.trained`, classes
of the user by :mod:`.own`.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...checkpoints import shipped
from ...common.errors import Misspelt, did_you_mean, is_whole
from ...common.rule_files import rules_in
from .. import MAX_DRAFT
from ..acceptance.feature_model import FeaturePredictor
from ..acceptance.lag_free_head import LagFreePredictor
from ..acceptance.predictor import AcceptancePredictor
from ..acceptance.specdec_head import HeadPredictor
from ..acceptance.step import Step
from ..own_modules import CHECKPOINT
from .acceptance_length import AcceptanceLength
from .adaptive_length import AdaptiveLength
from .base import LengthController
from .confidence import Confidence
from .cost_model import CostModel
from .cumulative_confidence import CumulativeConfidence
from .entropy import Entropy
from .fallback import Fallback
from .fixed import Fixed
from .heuristic import Heuristic
from .online_confidence import OnlineConfidence
from .oracle import Oracle
from .own import load_own, names_own, own_class
from .priced import PricedController, TrainedLength
from .rate_optimal import RateOptimal
from .rule import Rule
from .trained import load_trained

__all__ = [
    "MAX_DRAFT",
    "AcceptanceLength",
    "AcceptancePredictor",
    "AdaptiveLength",
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
    "TrainedLength",
    "load_rule",
    "load_trained",
    "names_class",
    "names_rule",
    "parse_rule",
    "takes_cost",
]


FILES = (
    "fixed",
    "oracle",
    "heuristic",
    "confidence",
    "cumulative_confidence",
    "entropy",
    "fallback",
    "adaptive_length",
    "online_confidence",
)
RULES = rules_in(__name__, FILES, Rule)
NUMBER = re.compile(r"-?\d*\.?\d+")  # what follows a rule's name; no folder or hub id ends in ":" and a number


def names_rule(spec: str) -> bool:
    """Whether ``spec`` names a rule, also one of the user's, rather than a trained controller."""
    return _built_in(spec) or names_own(spec)


def names_class(spec: str) -> bool:
    """Whether ``spec`` names a rule of the user's: a class, see :mod:`.own`."""
    return not _built_in(spec) and names_own(spec)


def _built_in(spec: str) -> bool:
    name = spec.partition(":")[0]
    numbered = name in RULES and RULES[name].example is not None
    return numbered or spec in RULES or is_whole(spec.removeprefix("-"))


def takes_cost(spec: str) -> bool:
    """Whether the controller ``spec`` can use a cost model: a trained one, ``"online-confidence"``, or one's own."""
    if _built_in(spec):
        return spec in RULES and RULES[spec].priced
    return not names_class(spec) or issubclass(own_class(spec), PricedController)


def load_rule(spec: str, cost: CostModel | None = None) -> LengthController | None:
    """:func:`parse_rule`, which also imports a class of the user: see :mod:`.own`. Not for what a request names.

    Raises:
        InputError: a rule's parameter is wrong, or the class cannot be imported or made.
    """
    return load_own(spec).repriced(cost) if names_class(spec) else parse_rule(spec, cost)


def _may_be_trained(name: str) -> bool:
    """Return true if a trained controller may have this name: one that is shipped, a folder, or an id on the hub."""
    return shipped(name) is not None or "/" in name or Path(name).expanduser().exists()


def parse_rule(spec: str, cost: CostModel | None = None) -> LengthController | None:
    """The rule named by ``spec``: ``"4"``, ``"none"``, ``"cumulative-confidence:0.4"`` …; None if it is not a rule.

    Args:
        cost: cost model for the rule ``"online-confidence"``.

    Raises:
        InputError: a rule's parameter is missing, malformed or out of range.
    """
    if is_whole(spec.removeprefix("-")):
        return Fixed(int(spec))
    if CHECKPOINT.fullmatch(spec):
        return None  # a trained controller of the user's own
    name, colon, number = spec.partition(":")
    if name not in RULES:
        meant = did_you_mean(name, RULES)
        if (meant and not Path(spec).exists()) or NUMBER.fullmatch(number or spec):
            if colon and _may_be_trained(name):
                raise Misspelt(
                    f"length={spec!r}: the threshold of a trained controller is an option of its own; give {name!r} "
                    f"as the length, and --threshold {number}"
                )
            rules = ", ".join(RULES)
            raise Misspelt(
                f"length={spec!r}: no such rule{meant or ';'} give a whole number, one of {rules}, or the folder of "
                "a trained controller (with ./ or / in front)"
            )
        return None
    rule = RULES[name]
    if not colon and (rule.optional or rule.example is None):
        return rule.make(cost=cost) if rule.priced else rule.make()
    if rule.example is None:
        raise Misspelt(f"length={spec!r}: the rule takes no number; give {name!r}")
    try:
        value = float(number)
    except ValueError:
        raise Misspelt(f"length={spec!r}: give the rule's number, as in '{name}:{rule.example}'") from None
    return rule.make(value)
