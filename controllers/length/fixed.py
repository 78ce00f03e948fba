"""Fixed draft length K (Leviathan et al. 2023; Chen et al. 2023). K = 0 is autoregressive decoding."""

from __future__ import annotations

from ...common.errors import InputError
from .base import MAX_DRAFT, LengthController, Step


class Fixed(LengthController):
    def __init__(self, k: int) -> None:
        if not 0 <= k <= MAX_DRAFT:
            raise InputError(f"length={k}: a fixed draft length must be between 0 (autoregressive) and {MAX_DRAFT}")
        self.k = k

    def start_round(self) -> bool:
        return self.k > 0

    def observe(self, step: Step) -> bool:
        return step.index < self.k
