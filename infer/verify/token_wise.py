"""Token-wise verification (Leviathan et al. 2023; Chen et al. 2023; SpecTr Algorithm 1). Lossless.

Accept ``y_i`` with probability ``min(1, p_i(y_i) / q_i(y_i))``; at the first rejection draw from
``norm((p_i - q_i)+)``; after K acceptances draw from ``p_{K+1}``. The law of the output is exactly that of drawing
every token from ``p``.
"""

from __future__ import annotations

from ..distribution import TokenDistribution
from ..draft import Draft
from ..random_source import RandomSource
from .verdict import Verdict, kept


def token_wise(p: TokenDistribution, draft: Draft, chance: RandomSource) -> Verdict:
    """Verify the chain ``draft`` against the target's warped distributions ``p``, K + 1 of them."""
    count = len(draft.tokens)
    ratios = draft.ratios(p)
    tosses = chance.accept(ratios)
    accepted = tosses.index(False) if False in tosses else count
    if accepted == count:
        return kept(accepted, p.sample(count, chance), ratios)
    return kept(accepted, p.sample_beyond(accepted, draft.laws[accepted], chance), ratios)
