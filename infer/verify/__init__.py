"""Verification rules: pure functions from the target's distributions and a draft to what is kept of it.

Each file defines its ``RULE``, and ``FILES`` names it. Rules of chains verify one chain; the others choose one token
from several proposals and verify trees node by node. The output has the target's distribution, except under rules that
are not ``lossless``, whose output quality must be measured too.
"""

from __future__ import annotations

from ...common.errors import InputError
from ...common.rule_files import rules_in
from ..core import Verdict
from .candidates import candidates
from .invariant import invariant
from .rule import Rule, Verifier
from .tree import Selection, verify_tree

__all__ = [
    "RULES",
    "Rule",
    "Selection",
    "Verdict",
    "Verifier",
    "candidates",
    "invariant",
    "parse_verifier",
    "verify_tree",
]

FILES = (
    "token_wise",
    "block",
    "invariant",
    "typical",
    "bild",
    "mtad",
    "mtjd",
    "spec_infer",
    "mcss",
    "k_seq",
    "otm",
)
RULES = rules_in(__name__, FILES, Rule)


def parse_verifier(spec: str) -> tuple[Rule, Verifier]:
    """A rule, and its function: of ``"block"``, ``"k-seq"``, ``"mtad:0.3"``, ``"typical:0.09"``, ``"bild:3"``.

    Raises:
        InputError: no such rule, or one that has no threshold, or not this one.
    """
    name, colon, number = spec.partition(":")
    if name not in RULES:
        raise InputError(f"verifier={spec!r}: choose one of {', '.join(RULES)}")
    rule = RULES[name]
    if not colon:
        return rule, rule.verifier()
    if rule.threshold is None:
        numbered = ", ".join(other.name for other in RULES.values() if other.threshold is not None)
        raise InputError(f"verifier={spec!r}: only {numbered} have a threshold")
    try:
        return rule, rule.verifier(float(number))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"verifier={spec!r}: give the rule's number, as in '{name}:0.3'") from None
