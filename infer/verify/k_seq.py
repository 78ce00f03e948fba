"""K-SEQ, one token from k i.i.d. proposals (SpecTr, Sun et al. 2023, Algorithm 2). Lossless.

The proposals are tried in the order in which they were drawn. Each is accepted with probability
``min(1, p(y)/(ρ·q(y)))``. The division factor ρ is the smallest for which no token is accepted with more than its
probability under p. The probability that a proposal is accepted is then at least (1 - 1/e) times that of the optimal
rule (Theorem 2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import residual
from ..random_source import RandomSource
from .rule import Rule

STEPS = 60  # of the bisection, which determines ρ to the last bit of float64 for every k


def k_seq(p: Tensor, proposals: list[int], q: Tensor, rng: RandomSource) -> int:
    """Return a token distributed as ``p`` (V,).

    Args:
        proposals: k tokens, drawn independently from the same distribution.
        q: (k, V) the proposals' distributions; all rows are equal.
    """
    q = q[0]
    rho = division_factor(p, q, len(proposals))
    draws = rng.accept((p[proposals] / (rho * q[proposals])).tolist())  # q(y) > 0: y was drawn from it
    if True in draws:
        return proposals[draws.index(True)]
    beta, accepted = acceptance(p, q, len(proposals), rho)
    kept_mass = torch.minimum(q, p / rho) * (accepted / beta if beta > 0 else 0.0)
    return rng.sample(residual(p, kept_mass))


def acceptance(p: Tensor, q: Tensor, k: int, rho: float) -> tuple[float, float]:
    """Return the acceptance probabilities β(ρ) = Σ_v min(q, p/ρ) of one proposal and 1 - (1 - β)^k of any of k."""
    beta = min(1.0, float(torch.minimum(q, p / rho).sum()))
    return beta, 1.0 - (1.0 - beta) ** k


def division_factor(p: Tensor, q: Tensor, k: int) -> float:
    """Return ρ* in [1, k], the smallest ρ with 1 - (1 - β(ρ))^k ≤ ρ·β(ρ) (eq. 6), for p and q (V,) and k proposals.

    The difference of the two sides decreases with ρ, so that bisection finds ρ*. The function returns the upper end of
    the last interval, for which the inequality holds.
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
    """Return the left side minus the right side of eq. 6."""
    beta, accepted = acceptance(p, q, k, rho)
    return accepted - rho * beta


RULE = Rule("k-seq", select=k_seq)
