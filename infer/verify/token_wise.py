"""Token-wise verification (Leviathan et al. 2023; Chen et al. 2023; SpecTr Algorithm 1). Lossless.

The rule accepts ``y_i`` with probability ``min(1, p_i(y_i) / q_i(y_i))``. At the first rejection it draws a token from
``norm((p_i - q_i)+)``; after K acceptances it draws a token from ``p_{K+1}``. The output has exactly the distribution
of tokens that are drawn from ``p`` one by one.
"""

from __future__ import annotations

from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource
from .rule import Rule


def token_wise(p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
    """Verify the chain ``draft`` against the target's K + 1 distributions ``p``."""
    count = len(draft.tokens)
    ratios = draft.ratios(p)
    draws = rng.accept(ratios)
    accepted = draws.index(False) if False in draws else count
    if accepted == count:
        return Verdict.chain(accepted, p.sample(count, rng), ratios)
    return Verdict.chain(accepted, p.sample_beyond(accepted, draft.distributions[accepted], rng), ratios)


RULE = Rule("token-wise", token_wise)
