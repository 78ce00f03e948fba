"""Token-wise verification (Leviathan et al. 2023; Chen et al. 2023; SpecTr Algorithm 1). Lossless.

Accept ``y_i`` with probability ``min(1, p_i(y_i) / q_i(y_i))``; at the first rejection draw from
``norm((p_i - q_i)+)``; after K acceptances draw from ``p_{K+1}``. The law of the output is exactly that of drawing
every token from ``p``.
"""

from __future__ import annotations

from torch import Tensor

from ..chance import Chance
from ..draft import Draft
from .verdict import Verdict, kept


def token_wise(p: Tensor, draft: Draft, chance: Chance) -> Verdict:
    """Verify ``draft`` against the target's warped distributions ``p`` (K + 1, V)."""
    count = len(draft.tokens)
    if count:
        # q(y) > 0 always: y was drawn from it.
        tosses = chance.accept((draft.pick(p) / draft.pick(draft.q)).clamp(max=1.0))
        accepted = tosses.index(False) if False in tosses else count
    else:
        accepted = 0
    if accepted == count:
        return kept(accepted, chance.sample(p[count]))
    return kept(accepted, chance.sample(residual(p[accepted], draft.q[accepted])))


def residual(p: Tensor, q: Tensor) -> Tensor:
    """``norm((p - q)+)``, shapes (V,) → (V,); ``p`` where the difference is empty, as only rounding can make it."""
    difference = (p - q).clamp(min=0)
    mass = difference.sum()
    return difference / mass if float(mass) > 0 else p
