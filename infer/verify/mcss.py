"""Multi-candidate speculative sampling (Yang et al. 2024): proposals drawn without replacement. Lossless.

As SpecInfer's rule, but a rejected proposal is also removed from the draft's distribution, ``q(y) ← 0, q ← norm(q)``:
the next one was drawn from that. The proposals must come in the order they were drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..random_source import RandomSource, without
from .rule import Rule
from .spec_infer import spec_infer


def mcss(p: Tensor, proposals: list[int], q: Tensor, rng: RandomSource) -> int:
    """A token distributed as ``p`` (V,); distinct ``proposals``, the first drawn from ``q[0]`` (V,)."""
    return spec_infer(p, proposals, _remaining(q[0], proposals), rng)


def _remaining(q: Tensor, proposals: list[int]) -> Iterator[Tensor]:
    """What each proposal was drawn from: ``q`` (V,) without those before it."""
    for token in proposals:
        yield q
        q = without(q, token)


RULE = Rule("mcss", select=mcss)
