"""A moving average of accepted lengths chooses K, ``round(mean) + 1``, as SGLang's adaptive speculative steps do."""

from __future__ import annotations

from ..errors import InputError
from .base import MAX_DRAFT, LengthController, Step

WEIGHT = 0.2  # of the last round in the moving average


class AdaptiveLength(LengthController):
    """One token more than the text's drafts were accepted of late, so that a longer draft is tried as soon as it pays.

    Args:
        first: tokens of a text's first draft.

    Raises:
        InputError: ``first`` is no whole number from 1 to ``MAX_DRAFT``.
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
        """Tokens of the next draft."""
        return min(MAX_DRAFT, int(self.mean + 0.5) + 1)

    def start_text(self) -> None:
        self.mean = self.first - 1.0

    def start_round(self) -> bool:
        return True

    def observe(self, step: Step) -> bool:
        return step.index < self.k

    def end_round(self, drafted: int, accepted: int) -> None:
        self.mean += WEIGHT * (accepted - self.mean)
