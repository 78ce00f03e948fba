"""K-SEQ, one token from k i.i.d. proposals (SpecTr, Sun et al. 2023, Algorithm 2). Lossless.

The proposals are tried in the order they were drawn, each accepted with probability ``min(1, p(y)/(ρ·q(y)))``. The
division factor ρ is the smallest that keeps every token's acceptance within its share of p; the probability
that some proposal is accepted is then at least (1 - 1/e) of the best that any rule can reach (Theorem 2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import residual
from ..random_source import RandomSource
from .rule import Rule

STEPS = 60  # of bisection: ρ to the last bit of float64, whatever k


def k_seq(p: Tensor, proposals: list[int], q: Tensor, rng: RandomSource) -> int:
    """A token distributed as ``p`` (V,); i.i.d. ``proposals``, so that all rows of ``q`` (k, V) are the same."""
    q = q[0]
    rho = division_factor(p, q, len(proposals))
    draws = rng.accept((p[proposals] / (rho * q[proposals])).tolist())  # q(y) > 0: y was drawn from it
    if True in draws:
        return proposals[draws.index(True)]
    beta, accepted = acceptance(p, q, len(proposals), rho)
    given = torch.minimum(q, p / rho) * (accepted / beta if beta > 0 else 0.0)
    return rng.sample(residual(p, given))


def acceptance(p: Tensor, q: Tensor, k: int, rho: float) -> tuple[float, float]:
    """β(ρ) = Σ_v min(q, p/ρ), one proposal's acceptance, and 1 - (1 - β)^k, that of any of k."""
    beta = min(1.0, float(torch.minimum(q, p / rho).sum()))
    return beta, 1.0 - (1.0 - beta) ** k


def division_factor(p: Tensor, q: Tensor, k: int) -> float:
    """ρ* in [1, k]: the smallest ρ with 1 - (1 - β(ρ))^k ≤ ρ·β(ρ) (eq. 6), for p and q (V,) and k proposals.

    The difference of the two sides falls as ρ grows, so it is found by bisection; the upper end is returned, where
    the inequality holds.
    """
    low, high = 1.0, float(k)
    if k == 1 or _excess(p, q, k, low) <= 0:
        return 1.0
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if _excess(p, q, k, middle) > 0:
            low = middle
        else:
            high = middle
    return high


def _excess(p: Tensor, q: Tensor, k: int, rho: float) -> float:
    beta, accepted = acceptance(p, q, k, rho)
    return accepted - rho * beta


RULE = Rule("k-seq", select=k_seq)
