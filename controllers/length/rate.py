"""The optimal long-run rate of tokens, and running estimates of rates.

A round of K drafted tokens takes ``cost.round(K)`` seconds and yields 1 + Σ_{i≤K} s_i tokens in expectation, where s_i
is the probability that the first i drafted tokens are all accepted. By the renewal-reward theorem the optimal rate λ*
solves max E[tokens - λ*·seconds] = 0 (Dinkelbach's equation).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .. import MAX_DRAFT
from .cost_model import CostModel


class Continuation(NamedTuple):
    """The best continuation of a draft as far as it can be planned.

    Attributes:
        tokens: number of further tokens; 0 if none of them pays.
        gain: expected gain over stopping, in tokens, without the cost of the start of a draft.
    """

    tokens: int
    gain: float


def best_continuation(
    survival: float, later: float, rate: float, cost: CostModel, drafted: int = 0, most: int = MAX_DRAFT
) -> Continuation:
    """Return the number of further tokens whose gain exceeds their cost the most, and the difference.

    If the time of a verification is a line, this number is positive if the next token pays. If it has steps, a token
    that begins a step pays if it pays together with the tokens after it.

    Args:
        survival: the probability that the next token and all tokens before it are accepted.
        later: probability that each token after the next is accepted, if all tokens before it are.
        rate: tokens per second of decoding, by which a second costs ``rate`` tokens.
        cost: the cost model.
        drafted: number of tokens that are verified in any case.
        most: maximum number of further tokens.
    """
    best, gain = Continuation(0, 0.0), 0.0
    drafting = rate * cost.t_draft  # no token that gains less can pay
    for tokens in range(1, most + 1):
        if survival < drafting:
            break
        gain += survival - rate * (cost.t_draft + cost.added(drafted + tokens - 1))
        if gain >= best.gain:
            best = Continuation(tokens, gain)
        elif not cost.verify_shape:
            break
        survival *= later
    return best


def drafting_pays(first: float, later: float, rate: float, cost: CostModel) -> bool:
    """Return true if drafting with the best number of tokens gains more than it costs.

    Args:
        first, later: mean acceptance of the first and of later tokens of a draft.
        rate: tokens per second without the draft.
        cost: the cost model.
    """
    best = best_continuation(first, later, rate, cost)
    return best.tokens > 0 and best.gain >= rate * cost.t_draft_start


def fixed_length_rates(survivals: Sequence[float] | Any, seconds: Any) -> Any:
    """Return the tokens per second of every fixed draft length; the largest is λ* among fixed lengths.

    Args:
        survivals: s_0, …, s_K (K + 1,), the probability that the first 0, 1, … drafted tokens are all accepted; s_0 = 1
            stands for the token that every round yields.
        seconds: times of a round with 0, …, K drafted tokens (…, K + 1).

    Returns:
        An array (…, K + 1).
    """
    return np.cumsum(survivals) / np.asarray(seconds)


@lru_cache(maxsize=1024)
def steady_rate(acceptance: float, cost: CostModel) -> float:
    """Return λ* if every token is accepted independently with probability ``acceptance``.

    It is the tokens per second of the best fixed length from 0 to ``MAX_DRAFT``.
    """
    survivals = [acceptance**k for k in range(MAX_DRAFT + 1)]
    return float(fixed_length_rates(survivals, [cost.round(drafted) for drafted in range(MAX_DRAFT + 1)]).max())


class RunningRatio:
    """The ratio Σ ``above`` / Σ ``below`` with exponentially decaying weights.

    Args:
        value: the initial ratio.
        weight: weight of the initial ratio, in units of ``below``.
        memory: number of additions after which a weight has decayed to 1/e.
    """

    def __init__(self, value: float, weight: float, memory: float) -> None:
        self.above, self.below = value * weight, weight
        self.keep = 1.0 - 1.0 / memory

    def add(self, above: float, below: float) -> None:
        """Decay both sums, and add ``above`` and ``below`` to them."""
        self.above = self.keep * self.above + above
        self.below = self.keep * self.below + below

    @property
    def value(self) -> float:
        """The current ratio."""
        return self.above / self.below
