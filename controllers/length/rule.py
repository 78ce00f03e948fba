"""The entry of a length rule in the registry of :mod:`specpilot.controllers.length`: its name, and checks."""

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
        name: as in ``--length NAME``, or ``--length NAME:NUMBER``.
        make: makes the controller, of the number behind its name if there is one.
        example: such a number, for messages; None if the rule takes none.
        optional: whether the number may be left out.
        priced: whether the rule then takes a cost model, as ``cost``.
    """

    name: str
    make: Callable[..., LengthController]
    example: str | None = None
    optional: bool = False
    priced: bool = False


def first_length(rule: str, first: float) -> int:
    """``first`` if it can be the length of a text's first draft.

    Raises:
        InputError: it is not a whole number from 1 to ``MAX_DRAFT``.
    """
    if not (1 <= first <= MAX_DRAFT and first == int(first)):
        raise InputError(
            f"length='{rule}:{first:g}': the first draft length must be a whole number from 1 to {MAX_DRAFT}"
        )
    return int(first)


def checked(rule: str, threshold: float) -> float:
    """``threshold`` if it is a probability.

    Raises:
        InputError: it is not.
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"length='{rule}:{threshold:g}': the threshold must be in [0, 1]")
    return threshold
