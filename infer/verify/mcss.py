"""Multi-candidate speculative sampling (Yang et al. 2024): proposals drawn without replacement. Lossless.

As SpecInfer's rule, but a rejected proposal also leaves the draft's law: ``q(y) ← 0, q ← norm(q)``, which is what the
next one was drawn from. The proposals must come in the order they were drawn.
"""

from __future__ import annotations

from torch import Tensor

from ..chance import Chance
from .token_wise import residual


def mcss(p: Tensor, proposals: list[int], q: Tensor, chance: Chance) -> int:
    """A token whose law is ``p`` (V,); distinct ``proposals``, the first drawn from ``q[0]`` (V,)."""
    row = q[0]
    for token in proposals:
        if chance.accept((p[token] / row[token]).clamp(max=1.0).unsqueeze(0))[0]:
            return token
        p = residual(p, row)
        row = without(row, token)
    return chance.sample(p)


def without(q: Tensor, token: int) -> Tensor:
    """``q`` (V,) given that ``token`` is not drawn; all zeros if nothing else could be."""
    q = q.clone()
    q[token] = 0
    mass = q.sum()
    return q / mass if float(mass) > 0 else q
