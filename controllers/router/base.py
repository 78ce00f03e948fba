"""The interface of routers, which choose an arm from the target's embedding of a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from ..sampling import SamplingParams


class Router(ABC):
    """Chooses one of several arms for a whole generation.

    Attributes:
        arms: number of arms.
    """

    arms: int

    def check_sampling(self, sampling: SamplingParams) -> None:  # noqa: B027 — not every router was trained
        """Called with the sampling parameters of every generation; trained routers warn if theirs differ."""

    def check_verifier(self, verifier: str) -> None:  # noqa: B027 — not every router was trained
        """Called with the verification rule of generations that sample; trained routers warn if theirs differs."""

    @abstractmethod
    def weigh(self, embedding: Tensor) -> list[float]:
        """Probability of each arm for a prompt with ``embedding`` (d,); one-hot for deterministic routers."""


def certain(arm: int, arms: int) -> list[float]:
    """The one-hot weights of a deterministic choice."""
    return [float(index == arm) for index in range(arms)]
