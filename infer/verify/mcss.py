"""Multi-candidate speculative sampling (Yang et al. 2024): proposals drawn without replacement. Lossless.

The rule is SpecInfer's, with one addition: a rejected proposal is removed from the draft's distribution,
``q(y) ← 0, q ← norm(q)``, because the next proposal was drawn from this distribution. The proposals must be in the
order in which they were drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..random_source import RandomSource, without
from .rule import Rule
from .spec_infer import spec_infer


def mcss(p: Tensor, proposals: list[int], q: Tensor, rng: RandomSource) -> int:
    """Return a token distributed as ``p`` (V,).

    Args:
        proposals: k distinct tokens.
        q: (k, V) the first row is the distribution that the first proposal was drawn from.
    """
    return spec_infer(p, proposals, _remaining(q[0], proposals), rng)


def _remaining(q: Tensor, proposals: list[int]) -> Iterator[Tensor]:
    """Yield the distribution that each proposal was drawn from: ``q`` (V,) without the earlier proposals."""
    for token in proposals:
        yield q
        q = without(q, token)


RULE = Rule("mcss", select=mcss)
