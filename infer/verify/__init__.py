"""Verification rules: pure functions from the target's distributions and a draft to a verdict.

The verdict holds the accepted tokens and the token that follows them. Each file defines its ``RULE``, and ``FILES``
lists the files. A rule of chains verifies one chain. Any other rule chooses one token from several proposals and
verifies a tree node by node. Under a ``lossless`` rule the output has the target's distribution. The output quality of
any other rule must be measured.
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
    """Return the rule that ``spec`` names, and its function with the threshold of ``spec``.

    Args:
        spec: a name, or a name and a threshold: ``"block"``, ``"k-seq"``, ``"mtad:0.3"``, ``"typical:0.09"``,
            ``"bild:3"``.

    Raises:
        InputError: the rule does not exist, has no threshold, or does not allow this threshold.
    """
    name, colon, number = spec.partition(":")
    if name not in RULES:
        raise InputError(f"verifier={spec!r}: choose one of {', '.join(RULES)}")
    rule = RULES[name]
    if not colon:
        return rule, rule.verifier()
    if rule.threshold is None:
        numbered = ", ".join(rule.name for rule in RULES.values() if rule.threshold is not None)
        raise InputError(f"verifier={spec!r}: only {numbered} have a threshold")
    try:
        return rule, rule.verifier(float(number))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"verifier={spec!r}: give the rule's number, as in '{name}:0.3'") from None
