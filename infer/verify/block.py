"""Block verification (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2). Lossless.

Verifies a draft as a whole: with ``c_0 = 1``, ``c_i = min(1, c_{i-1}·p_i(y_i)/q_i(y_i))``, position i < K passes with
probability ``h_i = Z_i / (Z_i + 1 - c_i)``, where ``Z_i = Σ_v (c_i·p_{i+1}(v) - q_{i+1}(v))+``, and position K with
``h_K = c_K``. The *last* position that passes is kept, whatever failed before it; then one token from
``norm((c_i·p_{i+1} - q_{i+1})+)``, or from ``p_{K+1}``. On average it never keeps fewer tokens than judging one by one.
"""

from __future__ import annotations

from itertools import accumulate

from torch import Tensor

from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource
from .rule import Rule


def block(p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
    """Verify the chain ``draft`` against the target's K + 1 distributions ``p``."""
    count = len(draft.tokens)
    if count == 0:
        return Verdict.chain(0, p.sample(0, rng))
    c = joint_ratios(draft.ratios(p))
    draws = rng.accept(pass_probabilities(p.dense, draft.q, c))
    accepted = count - draws[::-1].index(True) if True in draws else 0
    if accepted == count:
        return Verdict.chain(accepted, p.sample(count, rng))
    return Verdict.chain(
        accepted, p.sample_beyond(accepted, draft.distributions[accepted], rng, scale=[1.0, *c][accepted])
    )


def joint_ratios(ratios: list[float]) -> list[float]:
    """c_1 … c_K from the ratios p_i(y_i)/q_i(y_i)."""
    return list(accumulate(ratios, lambda c, ratio: min(1.0, c * ratio), initial=1.0))[1:]


def pass_probabilities(p: Tensor, q: Tensor, c: list[float]) -> list[float]:
    """h_1 … h_K from p (K + 1, V), q (K, V) and c_1 … c_K."""
    passed = p.new_tensor(c[:-1])  # (K - 1,)
    gain = (passed[:, None] * p[1:-1] - q[1:]).clamp(min=0).sum(-1)  # Z_1 … Z_{K-1}
    whole = gain + 1 - passed
    h = (gain / whole.where(whole > 0, 1.0)).tolist()  # 0/0: nothing is left to draw, which only certainty can mean
    return [*h, c[-1]]


RULE = Rule("block", block)
