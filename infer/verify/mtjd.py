"""MTJD: the target itself drafted the tokens, so they need no verification (Qin et al. 2025, Definition 3.1). Lossy."""

from __future__ import annotations

from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource
from .rule import Rule


def mtjd(p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
    """Keep all of ``draft``, which the target has read already; sample from ``p`` only if the draft is empty."""
    if not draft.tokens:
        return Verdict([], p.sample(0, rng))
    last = len(draft.tokens) - 1
    return Verdict(list(range(last)), draft.tokens[last])


RULE = Rule("mtjd", mtjd, lossless=False)
