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
        """Check the sampling parameters of a generation; trained routers warn if those of the training differ."""

    def check_verifier(self, verifier: str) -> None:  # noqa: B027 — not every router was trained
        """Check the verification rule of a generation that samples; trained routers warn if their rule differs."""

    @abstractmethod
    def weigh(self, embedding: Tensor) -> list[float]:
        """Return the probability of each arm for a prompt's ``embedding`` (d,); one-hot for deterministic routers."""


def one_hot(arm: int, arms: int) -> list[float]:
    """Return the one-hot weights for the choice of ``arm`` among ``arms`` arms."""
    return [float(index == arm) for index in range(arms)]
