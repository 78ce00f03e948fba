"""The description of a length rule, and checks of its numbers.

Each file of :mod:`specpilot.controllers.length` with a rule describes the rule by a :class:`Rule` named ``RULE``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...common.errors import InputError
from .. import MAX_DRAFT
from .base import LengthController


@dataclass(frozen=True)
class Rule:
    """A length rule with a short name.

    Attributes:
        name: the name, as in ``--length NAME`` or ``--length NAME:NUMBER``.
        make: returns the controller for the number after the name, or without an argument.
        example: an example of the number, for messages; None if the rule has no number.
        optional: whether the number may be left out.
        uses_costs: whether the rule without a number uses a cost model, the keyword ``cost``.
    """

    name: str
    make: Callable[..., LengthController]
    example: str | None = None
    optional: bool = False
    uses_costs: bool = False


def first_length(rule: str, first: float) -> int:
    """Return ``first``, the length of a text's first draft, as an integer.

    Raises:
        InputError: ``first`` is not a whole number from 1 to ``MAX_DRAFT``.
    """
    if not (1 <= first <= MAX_DRAFT and first == int(first)):
        raise InputError(
            f"length='{rule}:{first:g}': the first draft length must be a whole number from 1 to {MAX_DRAFT}"
        )
    return int(first)


def check_threshold(rule: str, threshold: float) -> float:
    """Return ``threshold``.

    Raises:
        InputError: the threshold is not in [0, 1].
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"length='{rule}:{threshold:g}': the threshold must be in [0, 1]")
    return threshold
