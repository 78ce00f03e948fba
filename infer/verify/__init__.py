"""Verification rules: pure functions from the target's distributions and a draft to what is kept of it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..chance import Chance
from ..draft import Draft
from .block import block
from .token_wise import token_wise
from .verdict import Verdict

__all__ = ["VERIFIERS", "Verdict", "Verifier"]

Verifier = Callable[[Tensor, Draft, Chance], Verdict]

VERIFIERS: dict[str, Verifier] = {"token-wise": token_wise, "block": block}
