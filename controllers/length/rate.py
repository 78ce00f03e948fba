"""The best long-run rate of tokens, and the pieces it is estimated from. Pure arithmetic.

A round of K drafted tokens takes ``cost.round(K)`` seconds and yields 1 + Σ_{i≤K} s_i tokens in expectation. By renewal
reward the best rate λ* is the one at which no policy gains: max E[tokens - λ*·seconds] = 0 (Dinkelbach's equation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import MAX_DRAFT
from .cost_model import CostModel


@dataclass(frozen=True)
class LoggedRound:
    """A draft longer than a controller would make it, to replay shorter ones from.

    Attributes:
        gains: (K,) entry k is the controller's E[s_{k+1} | what was seen after k tokens].
        survivals: (K,) entry k is the true s_{k+1}: a_1·…·a_{k+1}, or 1 and 0 for kept and not.
    """

    gains: Sequence[float]
    survivals: Sequence[float]


def rate_at(rate: float, rounds: Sequence[LoggedRound], cost: CostModel) -> float:
    """Tokens per second of drafting on while ``gain ≥ rate·cost.per_token``."""
    price = rate * cost.per_token
    tokens = seconds = 0.0
    for logged in rounds:
        drafted = next((k for k, gain in enumerate(logged.gains) if gain < price), len(logged.gains))
        tokens += 1 + sum(logged.survivals[:drafted])
        seconds += cost.round(drafted)
    return tokens / seconds


def optimal_rate(rounds: Sequence[LoggedRound], cost: CostModel) -> float:
    """λ*: the rate that a controller reaches if it takes it for its price, ``rate_at(λ*) = λ*``, by bisection.

    Below it a controller that goes by calibrated gains earns more than it asks for, above it less.
    """
    low, high = 0.0, (MAX_DRAFT + 1) / cost.round(0)  # no round yields more, none takes less
    for _ in range(60):
        middle = (low + high) / 2
        if rate_at(middle, rounds, cost) >= middle:
            low = middle
        else:
            high = middle
    return low


def steady_rate(acceptance: float, cost: CostModel) -> float:
    """λ* where every token is kept with the same chance, whatever came before: that of the best fixed length."""
    survivals = [acceptance**k for k in range(1, MAX_DRAFT + 1)]
    return optimal_rate([LoggedRound(survivals, survivals)], cost)


class RunningRatio:
    """Σ above / Σ below over what was added, older parts forgotten exponentially.

    Args:
        value: the ratio before anything is added.
        weight: how much of ``below`` that first value counts for.
        memory: how many additions back a part counts for 1/e.
    """

    def __init__(self, value: float, weight: float, memory: float) -> None:
        self.above, self.below = value * weight, weight
        self.keep = 1.0 - 1.0 / memory

    def add(self, above: float, below: float) -> None:
        self.above = self.keep * self.above + above
        self.below = self.keep * self.below + below

    @property
    def value(self) -> float:
        return self.above / self.below
