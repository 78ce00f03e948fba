"""SpecInfer's multi-step rule (Miao et al. 2024, Algorithm 2): one token from any proposals. Lossless.

Proposals are tried in the order they were drawn, each accepted with probability ``min(1, p(y)/q(y))``; after a
rejection ``p ← norm((p - q)+)``. If all fail, the token is drawn from the last p.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ..core import residual
from ..random_source import RandomSource
from .rule import Rule


def spec_infer(p: Tensor, proposals: list[int], q: Iterable[Tensor], rng: RandomSource) -> int:
    """A token distributed as ``p`` (V,); proposal i was drawn from the i-th of ``q`` (V,), given those before it."""
    for token, row in zip(proposals, q, strict=True):
        if rng.accept([float(p[token] / row[token])])[0]:
            return token
        p = residual(p, row)
    return rng.sample(p)


RULE = Rule("spec-infer", select=spec_infer)
