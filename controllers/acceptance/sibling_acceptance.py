"""Predictions of the acceptance of a node's further children, which come after the node's first child in a draft tree.

Verification tries the children of a node in order. A prediction is the probability that a child is accepted, given that
verification has rejected all children before it. The predictions are logistic regressions on features of the draft's
distribution q and of the text's n-grams. The coefficients were fitted on 160 training prompts of ``builtin-large``
(``tiny``, ``tiny-draft``) at temperature 0 and 1. The features do not depend on a vocabulary. An intercept of each text
is learned while the text is decoded (:class:`~specpilot.controllers.length.rate_optimal_tree.RateOptimalTree`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .ngram_index import NgramMatch

SMALLEST = 1e-6  # lower bound of a probability in a logarithm


class Coefficients(NamedTuple):
    """Coefficients of a logistic regression; the features are those of :class:`Sibling`."""

    bias: float
    relative: float = 0.0
    remaining: float = 0.0
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
# For a token that is still to be drawn: the intercept, and the coefficient of the largest remaining probability of q.
UNDRAWN = -0.476, 0.551


class Sibling(NamedTuple):
    """A child of a node after the first child.

    Attributes:
        probability: q of the child's token. At temperature 0, q is the softmax at temperature 1, here and below.
        remaining: 1 minus the sum of the q of all children before it.
        entropy: entropy of q, in nats.
        rank: 1 plus the number of children that are tried before it, without the first drawn child.
        match: the n-gram match of its token.
        token: its token.
    """

    probability: float
    remaining: float
    entropy: float
    rank: int
    match: NgramMatch
    token: int

    def logit(self, coefficients: Coefficients) -> float:
        """Return the log-odds of acceptance with ``coefficients``."""
        mass = max(self.remaining, SMALLEST)
        relative = min(max(self.probability / mass, SMALLEST), 1.0 - 1e-4)
        return (
            coefficients.bias
            + coefficients.relative * math.log(relative / (1.0 - relative))
            + coefficients.remaining * math.log(max(mass, 1e-4))
            + coefficients.entropy * self.entropy
            + coefficients.probability * math.log(max(self.probability, SMALLEST))
            + coefficients.rank * math.log(self.rank)
            + coefficients.agrees * self.match.agrees
            + coefficients.matches * self.match.matches
            + coefficients.share * self.match.share
            + coefficients.copied * (self.match.copy == self.token)
        )


def drawn_logit(largest_probability: float, remaining_mass: float) -> float:
    """Return the log-odds that a child which is not drawn yet will be accepted.

    Such a child is drawn without replacement: from q without the tokens of the node's other children. Its token is not
    known yet, so the prediction depends on q alone::

        logit = intercept + coefficient * log(largest_probability / remaining_mass)

    The intercept and the coefficient are those of ``UNDRAWN``.

    Args:
        largest_probability: the largest q of the tokens that are not children yet.
        remaining_mass: the sum of q over these tokens: 1 minus the sum of the q of all children.
    """
    intercept, coefficient = UNDRAWN
    relative = max(largest_probability, SMALLEST) / max(remaining_mass, SMALLEST)
    return intercept + coefficient * math.log(relative)
