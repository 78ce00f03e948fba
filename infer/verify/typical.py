"""Typical acceptance (Medusa, Cai et al. 2024, section "Typical Acceptance").

The rule is lossy: the output's distribution is not the target's.

The rule accepts drafted tokens while ``p_i(y_i) > min(ε, δ·exp(-H(p_i)))``, where H is the entropy in nats: the higher
the target's entropy, the lower the bound. The first token that fails this test is replaced by a sample from p at its
place. If all K tokens pass, a sample from ``p_{K+1}`` follows the draft. The threshold in
``"typical:0.09"`` is ε, and δ = √ε as in Medusa.
"""

from __future__ import annotations

import math

import torch

from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource
from .rule import Rule, Threshold


def typical(
    p: TokenDistribution, draft: Draft, rng: RandomSource, epsilon: float = 0.09, delta: float = 0.3
) -> Verdict:
    """Verify a chain: return the number of accepted tokens, and the token after them.

    Args:
        p: the target's K + 1 distributions.
        draft: the chain of K drafted tokens.
        rng: draws the token after the accepted ones.
        epsilon: ε, the largest bound on the probability of an accepted token.
        delta: δ, the factor of exp(-H(p_i)) in the bound.
    """
    count = len(draft.tokens)
    entropy = torch.special.entr(p.probabilities[:count]).sum(-1)
    least = (delta * torch.exp(-entropy)).clamp(max=epsilon).tolist()
    passes = [p_y > bar for p_y, bar in zip(p.of(draft.tokens), least, strict=True)]
    accepted = passes.index(False) if False in passes else count
    return Verdict.chain(accepted, p.sample(accepted, rng))


RULE = Rule(
    "typical",
    typical,
    lossless=False,
    threshold=Threshold(
        lambda epsilon: {"epsilon": epsilon, "delta": math.sqrt(epsilon)}, lambda epsilon: 0 < epsilon <= 1,
        "ε must be in (0, 1]",
    ),
)  # fmt: skip
