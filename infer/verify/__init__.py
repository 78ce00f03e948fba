"""Verification rules: pure functions from the target's distributions and a draft to what is kept of it.

``VERIFIERS`` judge chains; ``SELECTIONS`` choose one token from several proposals and so judge trees, node by node.
All of them keep the target's law but the ``LOSSY``, whose text has to be judged as well as its speed.
"""

from __future__ import annotations

from collections.abc import Callable

from ..chance import Chance
from ..draft import Draft
from ..law import Law
from .bild import bild
from .block import block
from .k_seq import k_seq
from .mcss import mcss
from .otm import otm
from .spec_infer import spec_infer
from .token_wise import token_wise
from .tree import Selection, verify_tree
from .typical import typical
from .verdict import Verdict

__all__ = ["LOSSY", "SELECTIONS", "VERIFIERS", "Selection", "Verdict", "Verifier", "verify_tree"]

Verifier = Callable[[Law, Draft, Chance], Verdict]

VERIFIERS: dict[str, Verifier] = {"token-wise": token_wise, "block": block, "typical": typical, "bild": bild}
LOSSY = frozenset({"typical", "bild"})
SELECTIONS: dict[str, Selection] = {"spec-infer": spec_infer, "mcss": mcss, "k-seq": k_seq, "otm": otm}
