"""Multi-token assisted decoding's verification (Qin et al. 2025, Algorithm 1). Lossy: it compares joint likelihoods.

With ``P_j`` and ``Q_j`` the products of the first j drafted tokens' probabilities under target and draft, the *largest*
j with ``min(1, P_j/Q_j) > τ`` is kept, whatever failed before it; then one token from p, with no residual taken off.
τ near 1 keeps nearly nothing, which is sampling token by token. The algorithm as printed starts with η = -1 and then
sets it to a token; the paper's text has η = 0 and η = i, as implemented here.
"""

from __future__ import annotations

import math
from itertools import accumulate

from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource
from .rule import Rule, Threshold

TAU = 0.5


def mtad(p: TokenDistribution, draft: Draft, rng: RandomSource, tau: float = TAU) -> Verdict:
    """Verify ``draft`` against the target's K + 1 distributions ``p``; ``tau`` is τ in [0, 1)."""
    logs = [math.log(ratio) if ratio > 0 else -math.inf for ratio in draft.ratios(p)]
    bar = math.log(tau) if tau > 0 else -math.inf
    passes = [joint > bar for joint in accumulate(logs)]  # τ < 1: min(1, ·) changes no answer
    accepted = len(passes) - passes[::-1].index(True) if True in passes else 0
    return Verdict.chain(accepted, p.sample(accepted, rng))


RULE = Rule(
    "mtad",
    mtad,
    lossless=False,
    threshold=Threshold(lambda tau: {"tau": tau}, lambda tau: 0 <= tau < 1, "τ must be in [0, 1)"),
)
