"""A router that always takes the same arm."""

from __future__ import annotations

from specpilot.common.errors import InputError
from specpilot.controllers.router import Router
from specpilot.controllers.router.base import one_hot
from torch import Tensor


class SingleArm(Router):
    """Chooses the same arm for every prompt."""

    def __init__(self, arm: int, arms: int) -> None:
        if not 0 <= arm < arms:
            raise InputError(f"arm={arm}: must be between 0 and {arms - 1}")
        self.arm, self.arms = arm, arms

    def weigh(self, embedding: Tensor) -> list[float]:
        return one_hot(self.arm, self.arms)
