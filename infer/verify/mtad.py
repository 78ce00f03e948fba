"""Multi-token assisted decoding's verification (Qin et al. 2025, Algorithm 1). Lossy: it compares joint likelihoods.

Let ``P_j`` and ``Q_j`` be the products of the first j drafted tokens' probabilities under target and draft. The rule
accepts the first j tokens for the *largest* j with ``min(1, P_j/Q_j) > τ``, even if smaller j fail, and no token if
all j fail. The token after them is drawn from p, not from a residual. With τ near 1 the rule accepts a prefix only
if P_j is about Q_j or larger. The printed algorithm counts the accepted tokens in η, which starts with -1 and later is
set to a token. This implementation follows the paper's text, which accepts the longest prefix that passes: η starts
with 0 and is set to the index i.
"""

from __future__ import annotations

import math
from itertools import accumulate

from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource
from .rule import Rule, Threshold

TAU = 0.5


def mtad(p: TokenDistribution, draft: Draft, rng: RandomSource, tau: float = TAU) -> Verdict:
    """Verify a chain of K drafted tokens.

    Args:
        p: the target's K + 1 distributions.
        draft: the chain.
        rng: draws the token after the accepted ones.
        tau: τ in [0, 1).
    """
    logs = [math.log(ratio) if ratio > 0 else -math.inf for ratio in draft.ratios(p)]
    bar = math.log(tau) if tau > 0 else -math.inf
    passes = [joint > bar for joint in accumulate(logs)]  # without min(1, ·), which changes nothing for τ < 1
    accepted = len(passes) - passes[::-1].index(True) if True in passes else 0
    return Verdict.chain(accepted, p.sample(accepted, rng))


RULE = Rule(
    "mtad",
    mtad,
    lossless=False,
    threshold=Threshold(lambda tau: {"tau": tau}, lambda tau: 0 <= tau < 1, "τ must be in [0, 1)"),
)
