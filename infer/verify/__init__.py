"""Verification rules: pure functions from the target's distributions and a draft to what is kept of it.

``VERIFIERS`` verify chains; ``SELECTIONS`` choose one token from several proposals and verify trees node by node. All
of them preserve the target's distribution except the ``LOSSY`` rules, whose output quality must be measured too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from ...common.errors import InputError
from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource
from .bild import bild
from .block import block
from .candidates import candidates
from .k_seq import k_seq
from .mcss import mcss
from .mtad import mtad
from .mtjd import mtjd
from .otm import otm
from .spec_infer import spec_infer
from .token_wise import token_wise
from .tree import Selection, verify_tree
from .typical import typical

__all__ = [
    "LOSSY",
    "SELECTIONS",
    "VERIFIERS",
    "Selection",
    "Verdict",
    "Verifier",
    "candidates",
    "parse_verifier",
    "verify_tree",
]

Verifier = Callable[[TokenDistribution, Draft, RandomSource], Verdict]

VERIFIERS: dict[str, Verifier] = {
    "token-wise": token_wise,
    "block": block,
    "typical": typical,
    "bild": bild,
    "mtad": mtad,
    "mtjd": mtjd,
}
LOSSY = frozenset({"typical", "bild", "mtad", "mtjd"})
SELECTIONS: dict[str, Selection] = {"spec-infer": spec_infer, "mcss": mcss, "k-seq": k_seq, "otm": otm}

# The rules with a threshold: how it is used, the numbers it may be, and those in words.
THRESHOLDS: dict[str, tuple[Callable[[float], Verifier], Callable[[float], bool], str]] = {
    "typical": (lambda e: partial(typical, epsilon=e, delta=math.sqrt(e)), lambda e: 0 < e <= 1, "ε must be in (0, 1]"),
    "bild": (lambda t: partial(bild, rollback=t), lambda t: t >= 0, "the rollback threshold must be at least 0 nats"),
    "mtad": (lambda t: partial(mtad, tau=t), lambda t: 0 <= t < 1, "τ must be in [0, 1)"),
}


def parse_verifier(spec: str) -> tuple[str, Verifier]:
    """A rule's name and the rule: ``"block"``, ``"k-seq"``, ``"mtad:0.3"``, ``"typical:0.09"``, ``"bild:3"``.

    Typical acceptance has δ = √ε, as Medusa has it.

    Raises:
        InputError: no such rule, or one that has no threshold, or not this one.
    """
    name, colon, number = spec.partition(":")
    if colon:
        if name not in THRESHOLDS:
            raise InputError(f"verifier={spec!r}: only {', '.join(THRESHOLDS)} have a threshold")
        make, legal, message = THRESHOLDS[name]
        try:
            threshold = float(number)
        except ValueError:
            raise InputError(f"verifier={spec!r}: give the rule's number, as in '{name}:0.3'") from None
        if not legal(threshold):
            raise InputError(f"verifier={spec!r}: {message}")
        return name, make(threshold)
    if name in VERIFIERS:
        return name, VERIFIERS[name]
    if name in SELECTIONS:
        return name, partial(verify_tree, select=SELECTIONS[name])
    raise InputError(f"verifier={spec!r}: choose one of {', '.join([*VERIFIERS, *SELECTIONS])}")
