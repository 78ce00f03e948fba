"""Typical acceptance (Medusa, Cai et al. 2024, §3.3.1). Lossy: the output's distribution is not the target's.

Keeps drafted tokens while ``p(y_i) > min(ε, δ·exp(-H(p_i)))``, H in nats: what the target finds typical passes, the
more readily the less sure it is. Then one token from p. With one number ε, δ = √ε as in Medusa.
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
    """Verify ``draft`` against the target's K + 1 distributions ``p``."""
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
