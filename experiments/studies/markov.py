"""Stopping rules on a small Markov model of acceptance: exact long-run rates, and the optimal policy.

The positions of a text have classes (easy, hard, …) that follow a Markov chain, and a drafted token is accepted with
the probability of its position's class. The controller observes classes, not acceptances. After each drafted token, a
policy decides from the survival probability s_k, the last observed class and k. The chain continues from one round into
the next, so a decision also affects later rounds: a semi-Markov decision problem, solved by policy iteration (Howard).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray
from specpilot.controllers.length import MAX_DRAFT
from specpilot.controllers.length.cost_model import CostModel

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Nodes:
    """The N multisets of classes that k drafted tokens may have.

    Attributes:
        k: number of drafted tokens.
        survival: (N,) s_k.
        child: (N, C) index, among the nodes of k + 1 tokens, of the node after another token of each class.
    """

    k: int
    survival: Array
    child: NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """Expectations for the rest of the round, by node (N) and last observed class (C).

    Attributes:
        tokens: (N, C) expected number of tokens accepted from here on.
        drafted: (N, C) expected number of tokens drafted from here on.
        ends: (N, C, C) probability that nothing has been rejected so far and the next round begins with each class.
    """

    tokens: Array
    drafted: Array
    ends: Array


Policy = Callable[[Nodes, Outcome, Outcome], Any]
"""(nodes, outcome of stopping, outcome of continuing) → whether to continue, booleans that broadcast to (N, C)."""


@dataclass(frozen=True)
class MarkovText:
    """A text as a length controller observes it.

    Args:
        transition: (C, C) row i is the distribution of the class after class i.
        acceptance: (C,) probability that a drafted token of each class is accepted.
        next_known: the observed class is that of the next token instead of that of the token just drafted.
        independent: every round begins with a class drawn from the stationary distribution, independently of the last.
        longest: maximum number of tokens drafted in a round.
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
        """(C,) acceptance probability ā_{k+1} of the next token, by the last observed class."""
        return self.acceptance if self.next_known else self.transition @ self.acceptance

    @cached_property
    def levels(self) -> list[Nodes]:
        """The nodes after 0, 1, … ``longest`` drafted tokens."""
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
        """The outcome of a round under ``policy`` by the class it begins with (N = 1)."""
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
        """Long-run tokens per second, and the relative value (C,) of beginning with each class, in tokens."""
        whole = self.round(policy)
        tokens, drafted = 1 + whole.tokens[0], whole.drafted[0]  # (C,)
        seconds = cost.round(0) + cost.per_token * drafted + cost.t_draft_start * (drafted > 0)
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
        """The highest long-run rate of any policy in tokens per second, by policy iteration."""
        rate, value = self.evaluate(fixed(0), cost)
        while True:
            better, value = self.evaluate(improved(rate, value, cost), cost)
            if better <= rate * (1 + 1e-12):
                return rate
            rate = better


def stationary(transition: Array) -> Array:
    """The stationary distribution (C,) of a chain (C, C) with one recurrent class."""
    size = len(transition)
    system = np.vstack([transition.T - np.eye(size), np.ones(size)])
    return np.asarray(np.linalg.lstsq(system, np.array([*[0.0] * size, 1.0]), rcond=None)[0])


def improved(rate: float, value: Array, cost: CostModel) -> Policy:
    """Policy improvement: continue if the gain exceeds the cost, at ``rate`` tokens per second and ``value`` (C,)."""

    def policy(nodes: Nodes, stop: Outcome, go: Outcome) -> Any:
        gain = go.tokens + go.ends @ value - stop.ends @ value
        start = cost.t_draft_start * (nodes.k == 0)
        return gain > rate * (cost.per_token * go.drafted + start) + 1e-12

    return policy


def one_step(rate: float, text: MarkovText, cost: CostModel, mean: float | None = None) -> Policy:
    """Our rule at a given rate: draft while s_k·ā_{k+1} ≥ rate·(t_draft + b), with ā by the last class or ``mean``.

    It looks one token ahead, and so does not weigh ``t_draft_start``.
    """
    following = text.next_acceptance if mean is None else np.full(text.classes, mean)
    return lambda nodes, stop, go: nodes.survival[:, None] * following >= rate * cost.per_token


def threshold(h: float) -> Policy:
    """SpecDec++ (Huang et al. 2024, Algorithm 2): draft until 1 - s_k > h, and at least one token."""
    return lambda nodes, stop, go: 1 - nodes.survival[:, None] <= h


def fixed(length: int) -> Policy:
    """Draft ``length`` tokens in every round."""
    return lambda nodes, stop, go: nodes.k < length


def fixed_point(rate_of: Callable[[float], float], highest: float) -> float:
    """Solve ``rate_of(x) = x`` by bisection: the rate at which a rule that assumes it achieves it."""
    low, high = 0.0, highest
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rate_of(middle) >= middle else (low, middle)
    return low
