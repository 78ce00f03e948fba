"""BiLD's rollback (Kim et al. 2023, §3.2). Lossy: the output's distribution is not the target's.

The rule accepts drafted tokens until the first y_i with ``-log p_i(y_i) > τ``; τ is the argument ``rollback``, in nats.
A sample from p_i replaces this token. If no token exceeds τ, a sample from p_{K+1} follows the draft. The paper
combines the rule with the length rule ``fallback``.
"""

from __future__ import annotations

import math

from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource
from .rule import Rule, Threshold


def bild(p: TokenDistribution, draft: Draft, rng: RandomSource, rollback: float = 3.0) -> Verdict:
    """Verify a chain of K drafted tokens.

    Args:
        p: the target's K + 1 distributions.
        draft: the chain.
        rng: draws the token after the accepted ones.
        rollback: τ ≥ 0, in nats.
    """
    count = len(draft.tokens)
    fails = [p_y == 0 or -math.log(p_y) > rollback for p_y in p.of(draft.tokens)]
    accepted = fails.index(True) if True in fails else count
    return Verdict.chain(accepted, p.sample(accepted, rng))


RULE = Rule(
    "bild",
    bild,
    lossless=False,
    threshold=Threshold(
        lambda rollback: {"rollback": rollback}, lambda rollback: rollback >= 0,
        "the rollback threshold must be at least 0 nats",
    ),
)  # fmt: skip
