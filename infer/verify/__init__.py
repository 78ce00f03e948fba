"""Verification rules, which accept or reject drafted tokens.

A rule is a pure function of the target's distributions and a draft. It returns a :class:`Verdict`: the accepted tokens
and the token that follows them. Three kinds of rules exist:

* A rule of chains verifies a whole chain, a draft with one token for each position.
* A rule with ``select`` chooses one token for a position from its proposals, the tokens that were drafted for this
  position. :func:`verify_tree` applies such a rule to a tree, node by node from the root.
* A rule with ``trees`` verifies whole chains and whole trees.

Under a ``lossless`` rule the output has the target's distribution. Other rules change the distribution, so users must
measure the quality of their output.

Each file named in ``FILES`` defines one rule as the constant ``RULE``.
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
    """Return the rule that ``spec`` names, and a function that verifies drafts by this rule.

    Args:
        spec: the name of a rule, such as ``"block"`` or ``"k-seq"``. A threshold may follow, as in ``"mtad:0.3"``,
            ``"typical:0.09"`` or ``"bild:3"``; the file of a rule explains its threshold. Without a number, the
            function uses the rule's default threshold.

    Returns:
        The rule, and the function with the threshold.

    Raises:
        InputError: the rule does not exist, has no threshold, or does not allow this threshold.
    """
    name, separator, threshold = spec.partition(":")
    if name not in RULES:
        raise InputError(f"verifier={spec!r}: choose one of {', '.join(RULES)}")
    rule = RULES[name]
    if not separator:
        return rule, rule.verifier()
    if rule.threshold is None:
        rules_with_threshold = ", ".join(rule.name for rule in RULES.values() if rule.threshold is not None)
        raise InputError(f"verifier={spec!r}: only {rules_with_threshold} have a threshold")
    try:
        return rule, rule.verifier(float(threshold))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"verifier={spec!r}: give the rule's number, as in '{name}:0.3'") from None
