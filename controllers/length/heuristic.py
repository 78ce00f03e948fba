"""Draft two more tokens after a fully accepted draft, and one less after any other (transformers' heuristic)."""

from __future__ import annotations

from ...common.errors import InputError
from .base import MAX_DRAFT, LengthController, Step


class Heuristic(LengthController):
    def __init__(self, first: float = 5) -> None:
        if not (1 <= first <= MAX_DRAFT and first == int(first)):
            raise InputError(
                f"heuristic:{first:g}: the first draft length must be a whole number from 1 to {MAX_DRAFT}"
            )
        self.first = self.k = int(first)

    def start_text(self) -> None:
        self.k = self.first

    def start_round(self) -> bool:
        return True

    def observe(self, step: Step) -> bool:
        return step.index < self.k

    def end_round(self, drafted: int, accepted: int) -> None:
        self.k = min(MAX_DRAFT, self.k + 2) if accepted == drafted else max(1, self.k - 1)
