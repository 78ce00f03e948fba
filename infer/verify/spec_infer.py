"""SpecInfer's multi-step rule (Miao et al. 2024, Algorithm 2): one token from any proposals. Lossless.

The proposals are tried in the order in which they were drawn. Each is accepted with probability ``min(1, p(y)/q(y))``.
After a rejection ``p ← norm((p - q)+)``. If all proposals are rejected, the token is drawn from the last p.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ..core import residual
from ..random_source import RandomSource
from .rule import Rule


def spec_infer(p: Tensor, proposals: list[int], q: Iterable[Tensor], rng: RandomSource) -> int:
    """Return a token distributed as ``p`` (V,).

    Args:
        proposals: k tokens.
        q: k distributions (V,): proposal i was drawn from the i-th, given the proposals before it.
    """
    for token, row in zip(proposals, q, strict=True):
        if rng.accept([float(p[token] / row[token])])[0]:
            return token
        p = residual(p, row)
    return rng.sample(p)


RULE = Rule("spec-infer", select=spec_infer)
