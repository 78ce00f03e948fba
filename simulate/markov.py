"""Stopping on a small Markov model of acceptance, exactly: any policy's long-run rate, and the optimal policy.

The positions of a text have classes (easy, hard, …) that follow a Markov chain, and the target accepts a drafted token
with the probability of its position's class. The controller observes classes, not acceptances. A policy decides after
each drafted token by the survival probability s_k, the class observed last and k. The chain continues from one round
into the next, so a decision also affects later rounds: a semi-Markov decision problem, solved by policy iteration
(Howard).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..controllers.length import MAX_DRAFT
from ..controllers.length.cost_model import CostModel

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Nodes:
    """The N multisets of classes that k drafted tokens may have.

    Attributes:
        k: tokens drafted.
        survival: (N,) s_k.
        child: (N, C) index of the node after a further token of each class, among those of k + 1.
    """

    k: int
    survival: Array
    child: NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """Expectations for the rest of the round, at each of N nodes and C classes observed last.

    Attributes:
        tokens: (N, C) expected tokens accepted from here on.
        drafted: (N, C) expected tokens drafted from here on.
        ends: (N, C, C) probability that nothing has been rejected so far and the next round begins with each class.
    """

    tokens: Array
    drafted: Array
    ends: Array


Policy = Callable[[Nodes, Outcome, Outcome], Any]
"""(nodes, outcome of stopping, outcome of drafting on) → where to draft on, booleans that broadcast to (N, C)."""


@dataclass(frozen=True)
class MarkovText:
    """A text as a length controller observes it.

    Args:
        transition: (C, C) row i is the distribution of the class after class i.
        acceptance: (C,) probability that a drafted token of each class is accepted.
        next_known: the class observed at a decision is that of the next token, not that of the token just drafted.
        independent: every round begins with a class drawn from the stationary distribution: rounds are independent.
        longest: tokens a round may draft.
    """

    transition: Array
    acceptance: Array
    next_known: bool = False
    independent: bool = False
    longest: int = MAX_DRAFT

    @property
    def classes(self) -> int:
        return len(self.acceptance)

    @property
    def next_acceptance(self) -> Array:
        """(C,) ā_{k+1} by the class observed last."""
        return self.acceptance if self.next_known else self.transition @ self.acceptance

    @cached_property
    def levels(self) -> list[Nodes]:
        """The nodes after 0, 1, … ``longest`` tokens: how many of each class were drafted, in any order."""
        drafted = [list(combinations_with_replacement(range(self.classes), k)) for k in range(self.longest + 2)]
        index = [{classes: n for n, classes in enumerate(level)} for level in drafted]
        return [
            Nodes(
                k,
                np.array([self.acceptance[list(classes)].prod() for classes in drafted[k]]),
                np.array([[index[k + 1][tuple(sorted([*old, c]))] for c in range(self.classes)] for old in drafted[k]]),
            )
            for k in range(self.longest + 1)
        ]

    def round(self, policy: Policy) -> Outcome:
        """The outcome of a round under ``policy``, N = 1: by the class it begins with."""
        one, classes = np.eye(self.classes), range(self.classes)
        after: Outcome | None = None
        for nodes in reversed(self.levels):
            s = nodes.survival[:, None]  # (N, 1)
            nothing = np.zeros((len(s), self.classes))
            stop = Outcome(nothing, nothing, s[..., None] * self.transition)
            if after is None:
                after = stop
                continue
            tokens, drafted, ends = nothing.copy(), nothing + 1.0, np.zeros_like(stop.ends)
            for last in classes:
                for following in classes:
                    probability = self.transition[last, following]
                    own = last if self.next_known else following  # the class of the token that is drafted
                    accepted = s[:, 0] * self.acceptance[own]
                    child = nodes.child[:, own], following
                    tokens[:, last] += probability * (accepted + after.tokens[child])
                    drafted[:, last] += probability * after.drafted[child]
                    ends[:, last] += probability * ((s - accepted[:, None]) * one[following] + after.ends[child])
            go = Outcome(tokens, drafted, ends)
            on = np.broadcast_to(policy(nodes, stop, go), tokens.shape)
            after = Outcome(
                np.where(on, go.tokens, stop.tokens),
                np.where(on, go.drafted, stop.drafted),
                np.where(on[..., None], go.ends, stop.ends),
            )
        assert after is not None
        return after

    def evaluate(self, policy: Policy, cost: CostModel) -> tuple[float, Array]:
        """Long-run tokens per second, and the relative value (C,), in tokens, of beginning with each class."""
        whole = self.round(policy)
        tokens, seconds = 1 + whole.tokens[0], cost.round(0) + cost.per_token * whole.drafted[0]  # (C,)
        if self.independent:
            first = stationary(self.transition)
            return float(first @ tokens / (first @ seconds)), np.zeros(self.classes)
        # value = tokens - rate·seconds + ends·value, with value 0 for the first class: C equations, C unknowns.
        system = np.eye(self.classes) - whole.ends[0]
        system[:, 0] = seconds
        rate, *value = np.linalg.solve(system, tokens)
        return float(rate), np.array([0.0, *value])

    def rate(self, policy: Policy, cost: CostModel) -> float:
        """Long-run tokens per second of a policy."""
        return self.evaluate(policy, cost)[0]

    def optimal_rate(self, cost: CostModel) -> float:
        """The highest long-run rate of any policy, by policy iteration."""
        rate, value = self.evaluate(fixed(0), cost)
        while True:
            better, value = self.evaluate(improved(rate, value, cost), cost)
            if better <= rate * (1 + 1e-12):
                return rate
            rate = better


def stationary(transition: Array) -> Array:
    """(C,) the stationary distribution of a chain (C, C) with one recurrent class."""
    size = len(transition)
    system = np.vstack([transition.T - np.eye(size), np.ones(size)])
    return np.asarray(np.linalg.lstsq(system, np.array([*[0.0] * size, 1.0]), rcond=None)[0])


def improved(rate: float, value: Array, cost: CostModel) -> Policy:
    """Policy improvement: draft on where the gain is above the cost, at ``rate`` tokens a second and these values."""

    def policy(nodes: Nodes, stop: Outcome, go: Outcome) -> Any:
        gain = go.tokens + go.ends @ value - stop.ends @ value
        return gain > rate * cost.per_token * go.drafted + 1e-12

    return policy


def one_step(rate: float, text: MarkovText, cost: CostModel, mean: float | None = None) -> Policy:
    """Our rule at a given rate: s_k·ā_{k+1} ≥ rate·(t_draft + b), with ā by the class observed last, or a ``mean``."""
    following = text.next_acceptance if mean is None else np.full(text.classes, mean)
    return lambda nodes, stop, go: nodes.survival[:, None] * following >= rate * cost.per_token


def threshold(h: float) -> Policy:
    """SpecDec++ (Huang et al. 2024, Algorithm 2): until 1 - s_k > h; the first token is always drafted."""
    return lambda nodes, stop, go: 1 - nodes.survival[:, None] <= h


def fixed(length: int) -> Policy:
    """The same number of tokens in every round."""
    return lambda nodes, stop, go: nodes.k < length


def fixed_point(rate_of: Callable[[float], float], highest: float) -> float:
    """The rate at which a rule that assumes it achieves it, by bisection."""
    low, high = 0.0, highest
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rate_of(middle) >= middle else (low, middle)
    return low
