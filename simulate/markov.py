"""Stopping on a small Markov model of acceptance, exactly: any policy's long-run rate, and the best policy there is.

A text's positions have classes (easy, hard, …) that follow a Markov chain, and the target keeps a drafted token with
the chance of its position's class. Drafting is blind: it is seen which classes come, not which tokens will be kept. A
policy decides after each drafted token by the survival s_k, the class seen last and k. The chain runs on from one round
into the next, so what a policy leaves behind counts too: a semi-Markov decision problem, solved by policy iteration
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
    """All that may have been seen after k drafted tokens, but for the class seen last.

    Attributes:
        k: tokens drafted.
        survival: (N,) s_k.
        then: (N, C) the node after a further token of each class, among those of k + 1.
    """

    k: int
    survival: Array
    then: NDArray[np.int64]


@dataclass(frozen=True)
class Payoff:
    """What a choice leads to by the end of the round, at each of N nodes and C classes seen last.

    Attributes:
        tokens: (N, C) expected tokens kept from here on.
        drafted: (N, C) expected tokens drafted from here on.
        ends: (N, C, C) chance that the round is still alive here and the next one begins with each class.
    """

    tokens: Array
    drafted: Array
    ends: Array


Choice = Callable[[Nodes, Payoff, Payoff], Any]
"""Given nodes and what stopping and drafting on lead to: where to draft on, bools that broadcast to (N, C)."""


@dataclass(frozen=True)
class MarkovText:
    """A text as a length controller sees it.

    Args:
        transition: (C, C) row i is the law of the class after class i.
        acceptance: (C,) chance that a drafted token of each class is kept.
        foreseen: the class seen at a decision is the next token's, not that of the token in hand.
        fresh: every round begins anew, with a class drawn from the chain's stationary law: rounds are exchangeable.
        longest: tokens a round may draft.
    """

    transition: Array
    acceptance: Array
    foreseen: bool = False
    fresh: bool = False
    longest: int = MAX_DRAFT

    @property
    def classes(self) -> int:
        return len(self.acceptance)

    @property
    def next_acceptance(self) -> Array:
        """(C,) ā_{k+1} by the class seen last."""
        return self.acceptance if self.foreseen else self.transition @ self.acceptance

    @cached_property
    def levels(self) -> list[Nodes]:
        """The nodes after 0, 1, … ``longest`` tokens: how many of each class were drafted, in any order."""
        seen = [list(combinations_with_replacement(range(self.classes), k)) for k in range(self.longest + 2)]
        index = [{classes: n for n, classes in enumerate(level)} for level in seen]
        return [
            Nodes(
                k,
                np.array([self.acceptance[list(classes)].prod() for classes in seen[k]]),
                np.array([[index[k + 1][tuple(sorted([*old, c]))] for c in range(self.classes)] for old in seen[k]]),
            )
            for k in range(self.longest + 1)
        ]

    def play(self, draft_on: Choice) -> Payoff:
        """What a round leads to under the policy ``draft_on``, N = 1: by the class it begins with."""
        one, classes = np.eye(self.classes), range(self.classes)
        after: Payoff | None = None
        for nodes in reversed(self.levels):
            s = nodes.survival[:, None]  # (N, 1)
            nothing = np.zeros((len(s), self.classes))
            stop = Payoff(nothing, nothing, s[..., None] * self.transition)
            if after is None:
                after = stop
                continue
            tokens, drafted, ends = nothing.copy(), nothing + 1.0, np.zeros_like(stop.ends)
            for seen in classes:
                for coming in classes:
                    chance = self.transition[seen, coming]
                    drawn = seen if self.foreseen else coming  # the class of the token that is drafted
                    kept = s[:, 0] * self.acceptance[drawn]
                    child = nodes.then[:, drawn], coming
                    tokens[:, seen] += chance * (kept + after.tokens[child])
                    drafted[:, seen] += chance * after.drafted[child]
                    ends[:, seen] += chance * ((s - kept[:, None]) * one[coming] + after.ends[child])
            go = Payoff(tokens, drafted, ends)
            on = np.broadcast_to(draft_on(nodes, stop, go), tokens.shape)
            after = Payoff(
                np.where(on, go.tokens, stop.tokens),
                np.where(on, go.drafted, stop.drafted),
                np.where(on[..., None], go.ends, stop.ends),
            )
        assert after is not None
        return after

    def evaluate(self, draft_on: Choice, cost: CostModel) -> tuple[float, Array]:
        """Tokens per second of a policy in the long run, and the worth in tokens of beginning with each class, (C,)."""
        whole = self.play(draft_on)
        tokens, seconds = 1 + whole.tokens[0], cost.round(0) + cost.per_token * whole.drafted[0]  # (C,)
        if self.fresh:
            law = stationary(self.transition)
            return float(law @ tokens / (law @ seconds)), np.zeros(self.classes)
        # worth = tokens - rate·seconds + ends·worth, with worth 0 for the first class: C equations, C unknowns.
        system = np.eye(self.classes) - whole.ends[0]
        system[:, 0] = seconds
        rate, *worth = np.linalg.solve(system, tokens)
        return float(rate), np.array([0.0, *worth])

    def rate(self, draft_on: Choice, cost: CostModel) -> float:
        """Tokens per second of a policy in the long run."""
        return self.evaluate(draft_on, cost)[0]

    def optimal_rate(self, cost: CostModel) -> float:
        """The highest long-run rate of any policy, by policy iteration."""
        rate, worth = self.evaluate(fixed(0), cost)
        while True:
            better, worth = self.evaluate(best_reply(rate, worth, cost), cost)
            if better <= rate * (1 + 1e-12):
                return rate
            rate = better


def stationary(transition: Array) -> Array:
    """(C,) the law that a chain (C, C) of one recurrent class settles in."""
    size = len(transition)
    system = np.vstack([transition.T - np.eye(size), np.ones(size)])
    return np.asarray(np.linalg.lstsq(system, np.array([*[0.0] * size, 1.0]), rcond=None)[0])


def best_reply(rate: float, worth: Array, cost: CostModel) -> Choice:
    """Draft on where that earns more than it costs, if a second is worth ``rate`` tokens and classes ``worth``."""

    def draft_on(nodes: Nodes, stop: Payoff, go: Payoff) -> Any:
        gain = go.tokens + go.ends @ worth - stop.ends @ worth
        return gain > rate * cost.per_token * go.drafted + 1e-12

    return draft_on


def one_step(rate: float, text: MarkovText, cost: CostModel, mean: float | None = None) -> Choice:
    """Our rule at a price: s_k·ā_{k+1} ≥ rate·(t_draft + b), with ā by the class seen last, or a ``mean``."""
    coming = text.next_acceptance if mean is None else np.full(text.classes, mean)
    return lambda nodes, stop, go: nodes.survival[:, None] * coming >= rate * cost.per_token


def threshold(h: float) -> Choice:
    """SpecDec++ (Huang et al. 2024, Algorithm 2): until 1 - s_k > h; the first token is always drafted."""
    return lambda nodes, stop, go: 1 - nodes.survival[:, None] <= h


def fixed(length: int) -> Choice:
    return lambda nodes, stop, go: nodes.k < length


def fixed_point(rate_of: Callable[[float], float], highest: float) -> float:
    """The price at which a rule earns what it asks, by bisection."""
    low, high = 0.0, highest
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rate_of(middle) >= middle else (low, middle)
    return low
