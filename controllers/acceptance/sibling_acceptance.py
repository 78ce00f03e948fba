"""Acceptance of a node's further children: the probability that a child is accepted if all children before it are not.

The predictions are logistic regressions on features of the draft's distribution q and of the text's n-grams. The
coefficients were fitted on 160 training prompts of ``builtin-large`` (``tiny``, ``tiny-draft``) at temperature 0 and 1.
The features do not depend on a vocabulary. An intercept of each text is learned while the text is decoded
(:class:`~specpilot.controllers.length.rate_optimal_tree.RateOptimalTree`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .ngram_index import NgramMatch

LEAST = 1e-6  # lower bound of a probability in a logarithm


class Coefficients(NamedTuple):
    """Coefficients of a logistic regression; the features are those of :class:`Sibling`."""

    bias: float
    relative: float = 0.0
    left: float = 0.0
    entropy: float = 0.0
    probability: float = 0.0
    rank: float = 0.0
    agrees: float = 0.0
    matches: float = 0.0
    share: float = 0.0
    copied: float = 0.0


# For a candidate at temperature 0, a candidate at higher temperatures, and a token drawn from the remaining q.
GREEDY = Coefficients(-1.074, 1.160, 1.035, 0.241, -0.994, -0.999, 0.384, 0.106, 3.402, -2.185)
SAMPLED = Coefficients(-0.626, 0.218, 0.311, -0.545, -0.101, -0.384, 0.347, 0.090, 1.901, -0.546)
DRAWN = Coefficients(-0.402, 0.0, 0.110, -0.218, -0.044, 0.0, 0.475, -0.289, 1.398, 0.562)
UNDRAWN = -0.476, 0.551  # bias, and the coefficient of the largest remaining probability of q


class Sibling(NamedTuple):
    """A child of a node after the first child.

    Attributes:
        probability: q of the child's token. At temperature 0, q is the softmax at temperature 1, here and below.
        left: 1 minus the q of all children before it.
        entropy: entropy of q, in nats.
        rank: 1 plus the number of children that are tried before it, without the first drawn child.
        match: the n-gram match of its token.
        token: its token.
    """

    probability: float
    left: float
    entropy: float
    rank: int
    match: NgramMatch
    token: int

    def logit(self, w: Coefficients) -> float:
        """Return the log-odds of acceptance with the coefficients ``w``."""
        remaining = max(self.left, LEAST)
        relative = min(max(self.probability / remaining, LEAST), 1.0 - 1e-4)
        return (
            w.bias
            + w.relative * math.log(relative / (1.0 - relative))
            + w.left * math.log(max(remaining, 1e-4))
            + w.entropy * self.entropy
            + w.probability * math.log(max(self.probability, LEAST))
            + w.rank * math.log(self.rank)
            + w.agrees * self.match.agrees
            + w.matches * self.match.matches
            + w.share * self.match.share
            + w.copied * (self.match.copy == self.token)
        )


def drawn_logit(largest: float, remaining: float) -> float:
    """Return the log-odds of acceptance of a child before it is drawn from q without its elder siblings' tokens.

    Args:
        largest: the largest remaining probability of q.
        remaining: 1 minus the q of the children before it.
    """
    bias, weight = UNDRAWN
    return bias + weight * math.log(max(largest, LEAST) / max(remaining, LEAST))
