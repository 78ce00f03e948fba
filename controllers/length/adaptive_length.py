"""Draft length from a moving average of accepted lengths, ``round(mean) + 1``, as in SGLang's adaptive steps."""

from __future__ import annotations

from ...common.errors import InputError
from .base import MAX_DRAFT, LengthController, Step

WEIGHT = 0.2  # weight of the last round in the moving average


class AdaptiveLength(LengthController):
    """Drafts one token more than the recent mean accepted length of the text.

    Args:
        first: length of a text's first draft.

    Raises:
        InputError: ``first`` is not a whole number from 1 to ``MAX_DRAFT``.
    """

    def __init__(self, first: float = 4) -> None:
        if not (1 <= first <= MAX_DRAFT and first == int(first)):
            raise InputError(
                f"adaptive-length:{first:g}: the first draft length must be a whole number from 1 to {MAX_DRAFT}"
            )
        self.first = first
        self.start_text()

    @property
    def k(self) -> int:
        """Length of the next draft."""
        return min(MAX_DRAFT, int(self.mean + 0.5) + 1)

    def start_text(self) -> None:
        self.mean = self.first - 1.0

    def start_round(self) -> bool:
        return True

    def observe(self, step: Step) -> bool:
        return step.index < self.k

    def end_round(self, drafted: int, accepted: int) -> None:
        self.mean += WEIGHT * (accepted - self.mean)
