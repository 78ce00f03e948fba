"""A draft length that follows the mean accepted length."""

from __future__ import annotations

from .. import MAX_DRAFT
from .fixed import CountedLength
from .rule import Rule, first_length

AVERAGING = 0.2  # weight of the last round in the moving average


class AdaptiveLength(CountedLength):
    """Drafts ``round(mean) + 1`` tokens for a moving average of the text's accepted lengths (SGLang's adaptive steps).

    Args:
        first: length of a text's first draft.

    Raises:
        InputError: ``first`` is not a whole number from 1 to ``MAX_DRAFT``.
    """

    def __init__(self, first: float = 4) -> None:
        self.first = first_length("adaptive-length", first)
        self.start_text()

    @property
    def k(self) -> int:  # type: ignore[override]
        """Length of the next draft."""
        return min(MAX_DRAFT, int(self.mean + 0.5) + 1)

    def start_text(self) -> None:
        self.mean = self.first - 1.0

    def end_round(self, drafted: int, accepted: int) -> None:
        self.mean += AVERAGING * (accepted - self.mean)


RULE = Rule("adaptive-length", AdaptiveLength, "4", optional=True)
