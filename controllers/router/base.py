"""What a router is: it sees the target's embedding of a prompt and says how much each arm is worth a try."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from ..sampling import SamplingParams


class Router(ABC):
    """Chooses one of several arms for a whole generation.

    Attributes:
        arms: how many.
    """

    arms: int

    def check_sampling(self, sampling: SamplingParams) -> None:  # noqa: B027 — not every router was trained
        """Called with the sampling of every generation; warns if the router was trained under another."""

    @abstractmethod
    def weigh(self, embedding: Tensor) -> list[float]:
        """Probability of each arm for a prompt with this embedding (d,); all but one are 0 where there is no doubt."""

    def learn(self, embedding: Tensor, arm: int, rate: float) -> None:  # noqa: B027 — most routers have learnt
        """Called after a generation with ``arm``: it gave ``rate`` tokens per second, prefill excluded."""


def certain(arm: int, arms: int) -> list[float]:
    """The weights of a decision that is no toss."""
    return [float(index == arm) for index in range(arms)]
