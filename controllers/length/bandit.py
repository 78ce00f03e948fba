"""A bandit over stopping rules (TapOut, arXiv 2511.02017; BanditSpec, arXiv 2505.15141): UCB1 picks one per round.

The reward of a round is the mean of two shares: accepted tokens / longest possible draft, and accepted tokens / drafted
tokens. The first alone would draft too much, the second too little. UCB1 (Auer et al. 2002) picks the rule with the
largest mean reward + sqrt(2·ln(rounds) / rounds of this rule).
"""

from __future__ import annotations

import math
from copy import copy

from .. import MAX_DRAFT
from ..acceptance.step import Step
from .base import LengthController
from .rules import Confidence, Entropy, Fallback, Heuristic

BLEND = 0.5  # weight of the accepted share of the longest possible draft in the reward


class Bandit(LengthController):
    """Picks one of several rules for each round. The rules have the parameters of their papers, so none is tuned.

    The learned state belongs to the decoder: it is kept between texts and shared by the texts of a batch. The drafts
    and the text of a seed depend on it; the distribution of the text does not.
    """

    def __init__(self) -> None:
        self.rules: list[LengthController] = [Heuristic(5), Confidence(0.4), Entropy(0.5), Fallback(0.6)]
        self.rewards = Rewards(len(self.rules))
        self.chosen = 0

    def start_text(self) -> None:
        self.rules = [copy(rule) for rule in self.rules]  # each request has its own rules
        for rule in self.rules:
            rule.start_text()

    def start_round(self) -> bool:
        self.chosen = self.rewards.best()
        return self.rules[self.chosen].start_round()

    @property
    def planned(self) -> int | None:
        return self.rules[self.chosen].planned

    def observe(self, step: Step) -> bool:
        return self.rules[self.chosen].observe(step)

    def end_round(self, drafted: int, accepted: int) -> None:
        self.rules[self.chosen].end_round(drafted, accepted)
        self.rewards.add(self.chosen, BLEND * accepted / MAX_DRAFT + (1 - BLEND) * accepted / drafted)


class Rewards:
    """Rewards in [0, 1] of several arms, and UCB1's choice. Shared by the copies of a controller."""

    def __init__(self, arms: int) -> None:
        self.counts = [0] * arms
        self.sums = [0.0] * arms

    def add(self, arm: int, reward: float) -> None:
        self.counts[arm] += 1
        self.sums[arm] += reward

    def best(self) -> int:
        """The arm of the largest upper bound; arms that were never tried come first."""
        if 0 in self.counts:
            return self.counts.index(0)
        rounds = math.log(sum(self.counts))
        bounds = [total / n + math.sqrt(2 * rounds / n) for total, n in zip(self.sums, self.counts, strict=True)]
        return bounds.index(max(bounds))
