"""Block verification (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2). Lossless.

The rule verifies a draft as a whole. Let ``c_0 = 1`` and ``c_i = min(1, c_{i-1}·p_i(y_i)/q_i(y_i))``. Position i < K
passes with probability ``h_i = Z_i / (Z_i + 1 - c_i)``, where ``Z_i = Σ_v (c_i·p_{i+1}(v) - q_{i+1}(v))+``. Position K
passes with probability ``h_K = c_K``. The tokens up to the *last* position that passes are accepted, even if earlier
positions failed. The token after them is drawn from ``norm((c_i·p_{i+1} - q_{i+1})+)``, or from ``p_{K+1}`` after K
accepted tokens. On average the rule accepts at least as many tokens as token-wise verification.
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
    """Return c_1 … c_K, where c_i = min(1, c_{i-1}·r_i) and c_0 = 1, for the ``ratios`` r_i = p_i(y_i)/q_i(y_i)."""
    return list(accumulate(ratios, lambda c, ratio: min(1.0, c * ratio), initial=1.0))[1:]


def pass_probabilities(p: Tensor, q: Tensor, c: list[float]) -> list[float]:
    """Return h_1 … h_K for ``p`` (K + 1, V), ``q`` (K, V) and c_1 … c_K."""
    passed = p.new_tensor(c[:-1])  # (K - 1,)
    gain = (passed[:, None] * p[1:-1] - q[1:]).clamp(min=0).sum(-1)  # Z_1 … Z_{K-1}
    denominator = gain + 1 - passed
    # 0/0 arises only for c_i = 1 and an empty residual: h_i = 0
    h = (gain / denominator.where(denominator > 0, 1.0)).tolist()
    return [*h, c[-1]]


RULE = Rule("block", block)
