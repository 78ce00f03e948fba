"""Block verification (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2). Lossless.

Judges a draft as a whole: with ``c_0 = 1`` and ``c_i = min(1, c_{i-1}·p_i(y_i)/q_i(y_i))``, position i < K passes with
probability ``h_i = Z_i / (Z_i + 1 - c_i)``, where ``Z_i = Σ_v (c_i·p_{i+1}(v) - q_{i+1}(v))+``, and position K with
``h_K = c_K``. The *last* position that passes is kept, whatever failed before it; then one token from
``norm((c_i·p_{i+1} - q_{i+1})+)``, or from ``p_{K+1}``. On average it never keeps fewer tokens than judging one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..chance import Chance
from ..draft import Draft
from .token_wise import residual
from .verdict import Verdict, kept


def block(p: Tensor, draft: Draft, chance: Chance) -> Verdict:
    """Verify ``draft`` against the target's warped distributions ``p`` (K + 1, V)."""
    count = len(draft.tokens)
    if count == 0:
        return kept(0, chance.sample(p[0]))
    c = joint_ratios(draft.pick(p) / draft.pick(draft.q))  # (K,); q(y) > 0: y was drawn from it
    tosses = chance.accept(pass_probabilities(p, draft.q, c))
    accepted = count - tosses[::-1].index(True) if True in tosses else 0
    if accepted == count:
        return kept(accepted, chance.sample(p[count]))
    scale = c[accepted - 1] if accepted else 1.0
    return kept(accepted, chance.sample(residual(scale * p[accepted], draft.q[accepted])))


def joint_ratios(ratio: Tensor) -> Tensor:
    """c_1 … c_K (K,) from the ratios p_i(y_i)/q_i(y_i) (K,)."""
    c, result = ratio.new_ones(()), []
    for r in ratio:  # a product cut off at 1 in every step, which no cumulative operation gives
        c = (c * r).clamp(max=1.0)
        result.append(c)
    return torch.stack(result)


def pass_probabilities(p: Tensor, q: Tensor, c: Tensor) -> Tensor:
    """h_1 … h_K (K,) from p (K + 1, V), q (K, V) and c (K,)."""
    gain = (c[:-1, None] * p[1:-1] - q[1:]).clamp(min=0).sum(-1)  # (K - 1,) Z_1 … Z_{K-1}
    whole = gain + 1 - c[:-1]
    h = torch.where(whole > 0, gain / whole, 0.0)  # 0/0: nothing is left to draw, which only certainty can mean
    return torch.cat([h, c[-1:]])
