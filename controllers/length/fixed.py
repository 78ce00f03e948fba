"""A fixed draft length, and the base class of rules whose length does not depend on the drafted tokens."""

from __future__ import annotations

from functools import partial

from ...common.errors import InputError
from .. import MAX_DRAFT
from ..acceptance.step import Step
from .base import LengthController
from .rule import Rule


class CountedLength(LengthController):
    """Drafts ``k`` tokens, independent of the tokens.

    Attributes:
        k: number of tokens of the round's draft.
    """

    k: int

    @property
    def planned(self) -> int | None:
        return self.k if type(self).observe is CountedLength.observe else None

    def observe(self, step: Step) -> bool:
        return step.index < self.k


class Fixed(CountedLength):
    """A fixed draft length (Leviathan et al. 2023; Chen et al. 2023).

    Args:
        k: number of tokens of a draft; 0 is autoregressive decoding.

    Raises:
        InputError: ``k`` is not from 0 to ``MAX_DRAFT``.
    """

    def __init__(self, k: int) -> None:
        if not 0 <= k <= MAX_DRAFT:
            raise InputError(f"length={k}: a fixed draft length must be between 0 (autoregressive) and {MAX_DRAFT}")
        self.k = k

    def start_round(self) -> bool:
        return self.k > 0


RULE = Rule("none", partial(Fixed, 0))
