"""A bandit over rules of stopping (TapOut, arXiv 2511.02017; BanditSpec, arXiv 2505.15141): UCB1 picks one for a round.

The reward of a round is blended, half the accepted tokens of the longest possible draft and half those of the draft
made: the first alone would draft too much, the second too little. UCB1 (Auer et al. 2002) picks the rule of the largest
mean reward + sqrt(2·ln(rounds) / rounds of this rule).
"""

from __future__ import annotations

import math
from copy import copy

from .base import MAX_DRAFT, LengthController, Step
from .confidence import Confidence
from .entropy import Entropy
from .fallback import Fallback
from .heuristic import Heuristic

BLEND = 0.5  # weight of the accepted share of the longest possible draft in the reward


class Bandit(LengthController):
    """Picks one of several rules for each round, each with the parameter of its paper: there is none to tune.

    What is learnt is the decoder's: each text goes on with what those before it have shown, and the texts of a batch
    learn together. What a seed drafts, and so its text, depends on them; the distribution of the text does not.
    """

    def __init__(self) -> None:
        self.rules: list[LengthController] = [Heuristic(5), Confidence(0.4), Entropy(0.5), Fallback(0.6)]
        self.rewards = Rewards(len(self.rules))
        self.chosen = 0

    def start_text(self) -> None:
        self.rules = [copy(rule) for rule in self.rules]  # each request's own, as this controller is
        for rule in self.rules:
            rule.start_text()

    def start_round(self) -> bool:
        self.chosen = self.rewards.best()
        return self.rules[self.chosen].start_round()

    def observe(self, step: Step) -> bool:
        return self.rules[self.chosen].observe(step)

    def end_round(self, drafted: int, accepted: int) -> None:
        self.rules[self.chosen].end_round(drafted, accepted)
        self.rewards.add(self.chosen, BLEND * accepted / MAX_DRAFT + (1 - BLEND) * accepted / drafted)


class Rewards:
    """Rewards in [0, 1] of a number of arms, and UCB1's choice by them. Shared by the copies of a controller."""

    def __init__(self, arms: int) -> None:
        self.counts = [0] * arms
        self.sums = [0.0] * arms

    def add(self, arm: int, reward: float) -> None:
        self.counts[arm] += 1
        self.sums[arm] += reward

    def best(self) -> int:
        """The arm of the largest upper bound; one that was never tried before all others."""
        if 0 in self.counts:
            return self.counts.index(0)
        rounds = math.log(sum(self.counts))
        bounds = [total / n + math.sqrt(2 * rounds / n) for total, n in zip(self.sums, self.counts, strict=True)]
        return bounds.index(max(bounds))
