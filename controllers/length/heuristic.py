"""transformers' heuristic: a draft length that depends on the acceptance of the previous draft."""

from __future__ import annotations

from .. import MAX_DRAFT
from .fixed import CountedLength
from .rule import Rule, first_length


class Heuristic(CountedLength):
    """Drafts two more tokens after a fully accepted draft, and one less after any other (transformers' heuristic).

    The length stays from 1 to ``MAX_DRAFT``.

    Args:
        first: length of a text's first draft.

    Raises:
        InputError: ``first`` is not a whole number from 1 to ``MAX_DRAFT``.
    """

    def __init__(self, first: float = 5) -> None:
        self.first = self.k = first_length("heuristic", first)

    def start_text(self) -> None:
        self.k = self.first

    def end_round(self, drafted: int, accepted: int) -> None:
        self.k = min(MAX_DRAFT, self.k + 2) if accepted == drafted else max(1, self.k - 1)


RULE = Rule("heuristic", Heuristic, "5")
