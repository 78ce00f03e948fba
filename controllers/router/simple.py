"""Routers that do not look at the prompt: the baselines below any policy."""

from __future__ import annotations

from torch import Tensor

from ..errors import InputError
from .base import Router, certain


class SingleArm(Router):
    """Always the same arm."""

    def __init__(self, arm: int, arms: int) -> None:
        if not 0 <= arm < arms:
            raise InputError(f"arm={arm}: there are {arms}, counted from 0")
        self.arm, self.arms = arm, arms

    def weigh(self, embedding: Tensor) -> list[float]:
        return certain(self.arm, self.arms)


class RandomRouter(Router):
    """Any arm, each as likely as the others."""

    def __init__(self, arms: int) -> None:
        self.arms = arms

    def weigh(self, embedding: Tensor) -> list[float]:
        return [1 / self.arms] * self.arms
