"""Length controllers, and their names on the command line.

A rule's file defines its ``RULE``, and ``FILES`` lists the files. :mod:`.trained` loads trained controllers,
:mod:`.user_rule` classes of the user.
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
from ..user_modules import CHECKPOINT
from .acceptance_length import AcceptanceLength
from .adaptive_length import AdaptiveLength
from .base import LengthController
from .confidence import Confidence
from .cost_based import CostBasedController, TrainedLength
from .cost_model import CostModel
from .cumulative_confidence import CumulativeConfidence
from .entropy import Entropy
from .fallback import Fallback
from .fixed import Fixed
from .heuristic import Heuristic
from .online_confidence import OnlineConfidence
from .oracle import Oracle
from .rate_optimal import RateOptimal
from .rule import Rule
from .trained import load_trained
from .user_rule import find_user_class, load_user_rule, names_user_class

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
NUMBER = re.compile(r"-?\d*\.?\d+")  # the number of a rule; no folder or hub id ends with ":" and a number


def names_rule(spec: str) -> bool:
    """Return true if ``spec`` names a rule of this package or of the user, false for a trained controller."""
    return _built_in(spec) or names_user_class(spec)


def names_class(spec: str) -> bool:
    """Return true if ``spec`` names a rule of the user, a class; see :mod:`.user_rule`."""
    return not _built_in(spec) and names_user_class(spec)


def _built_in(spec: str) -> bool:
    """Return true if ``spec`` names a rule of this package."""
    name = spec.partition(":")[0]
    numbered = name in RULES and RULES[name].example is not None
    return numbered or spec in RULES or is_whole(spec.removeprefix("-"))


def takes_cost(spec: str) -> bool:
    """Return true if the controller ``spec`` can use a cost model.

    This holds for trained controllers, ``"online-confidence"``, and subclasses of :class:`CostBasedController`.
    """
    if _built_in(spec):
        return spec in RULES and RULES[spec].uses_costs
    return not names_class(spec) or issubclass(find_user_class(spec), CostBasedController)


def load_rule(spec: str, cost: CostModel | None = None) -> LengthController | None:
    """Return the rule named by ``spec``, which may be a class of the user; None if it is not a rule.

    The function imports the user's module (see :mod:`.user_rule`), so that it must not be used for names in requests.

    Args:
        spec: the name, as for :func:`parse_rule`, or ``package.module:Class``.
        cost: as for :func:`parse_rule`.

    Raises:
        InputError: a rule's parameter is wrong, or the class cannot be imported, or its constructor fails.
    """
    return load_user_rule(spec).with_costs(cost) if names_class(spec) else parse_rule(spec, cost)


def _may_be_trained(name: str) -> bool:
    """Return true if a trained controller may have this name: an included one, a folder, or an id on the hub."""
    return shipped(name) is not None or "/" in name or Path(name).expanduser().exists()


def parse_rule(spec: str, cost: CostModel | None = None) -> LengthController | None:
    """Return the rule named by ``spec``; None if it is not a rule.

    Args:
        spec: ``"4"``, ``"none"``, ``"cumulative-confidence:0.4"``, …
        cost: cost model for the rule ``"online-confidence"``.

    Raises:
        InputError: a rule's parameter is missing, malformed or out of range.
    """
    if is_whole(spec.removeprefix("-")):
        return Fixed(int(spec))
    if CHECKPOINT.fullmatch(spec):
        return None  # a trained controller of the user
    name, colon, number = spec.partition(":")
    if name not in RULES:
        suggestion = did_you_mean(name, RULES)
        if (suggestion and not Path(spec).exists()) or NUMBER.fullmatch(number or spec):
            if colon and _may_be_trained(name):
                raise Misspelt(
                    f"length={spec!r}: the threshold of a trained controller is an option of its own; give {name!r} "
                    f"as the length, and --threshold {number}"
                )
            rules = ", ".join(RULES)
            raise Misspelt(
                f"length={spec!r}: no such rule{suggestion or ';'} give a whole number, one of {rules}, or the folder "
                "of a trained controller (with ./ or / in front)"
            )
        return None
    rule = RULES[name]
    if not colon and (rule.optional or rule.example is None):
        return rule.make(cost=cost) if rule.uses_costs else rule.make()
    if rule.example is None:
        raise Misspelt(f"length={spec!r}: the rule takes no number; give {name!r}")
    try:
        value = float(number)
    except ValueError:
        raise Misspelt(f"length={spec!r}: give the rule's number, as in '{name}:{rule.example}'") from None
    return rule.make(value)
