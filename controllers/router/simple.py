"""Routers that ignore the prompt, as baselines."""

from __future__ import annotations

from torch import Tensor

from ...common.errors import InputError
from .base import Router, certain


class SingleArm(Router):
    """Always the same arm."""

    def __init__(self, arm: int, arms: int) -> None:
        if not 0 <= arm < arms:
            raise InputError(f"arm={arm}: must be between 0 and {arms - 1}")
        self.arm, self.arms = arm, arms

    def weigh(self, embedding: Tensor) -> list[float]:
        return certain(self.arm, self.arms)


class RandomRouter(Router):
    """Chooses an arm uniformly at random."""

    def __init__(self, arms: int) -> None:
        self.arms = arms

    def weigh(self, embedding: Tensor) -> list[float]:
        return [1 / self.arms] * self.arms
