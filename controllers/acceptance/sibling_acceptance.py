"""Acceptance of a node's further children: the probability that one is accepted, given that those before it are not.

Logistic regressions on what the draft's distribution q and the n-grams of the text say. Their coefficients were fitted
on 160 training prompts of ``builtin-large`` (``tiny``, ``tiny-draft``) at temperature 0 and 1; the features do not
depend on a vocabulary. A text's own intercept is learned while it is decoded
(:class:`~specpilot.controllers.length.rate_optimal_tree.RateOptimalTree`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .ngram_index import NgramMatch

LEAST = 1e-6  # probabilities are no smaller than this in a logarithm


class Coefficients(NamedTuple):
    """Of a logistic regression; the features are those of :class:`Sibling`."""

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


# A given token, at temperature 0 and above; and a token drawn from what is left of q.
GREEDY = Coefficients(-1.074, 1.160, 1.035, 0.241, -0.994, -0.999, 0.384, 0.106, 3.402, -2.185)
SAMPLED = Coefficients(-0.626, 0.218, 0.311, -0.545, -0.101, -0.384, 0.347, 0.090, 1.901, -0.546)
DRAWN = Coefficients(-0.402, 0.0, 0.110, -0.218, -0.044, 0.0, 0.475, -0.289, 1.398, 0.562)
UNDRAWN = -0.476, 0.551  # bias, and the coefficient of the largest of what is left of q


class Sibling(NamedTuple):
    """A child of a node that has others before it.

    Attributes:
        probability: q of its token; at temperature 0 that of the unwarped softmax, as of the two below.
        left: 1 less the q of the children before it.
        entropy: of q, in nats.
        rank: how many children before it are tried, the first drawn one left out, plus 1.
        match: the n-gram match of its token.
        token: itself.
    """

    probability: float
    left: float
    entropy: float
    rank: int
    match: NgramMatch
    token: int

    def logit(self, w: Coefficients) -> float:
        """Log-odds of acceptance."""
        left = max(self.left, LEAST)
        relative = min(max(self.probability / left, LEAST), 1.0 - 1e-4)
        return (
            w.bias
            + w.relative * math.log(relative / (1.0 - relative))
            + w.left * math.log(max(left, 1e-4))
            + w.entropy * self.entropy
            + w.probability * math.log(max(self.probability, LEAST))
            + w.rank * math.log(self.rank)
            + w.agrees * self.match.agrees
            + w.matches * self.match.matches
            + w.share * self.match.share
            + w.copied * (self.match.copy == self.token)
        )


def drawn_logit(largest: float, left: float) -> float:
    """Log-odds that a child is accepted that is yet to be drawn from q without its elder siblings' tokens.

    Args:
        largest: the most probable of what is left of q.
        left: 1 less the q of the children before it.
    """
    bias, weight = UNDRAWN
    return bias + weight * math.log(max(largest, LEAST) / max(left, LEAST))
