"""The random source of the decoder.

All random draws go through this class, so that tests can enumerate *all* outcomes of the decoder and compare its exact
output distribution with the target's.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from random import Random

import torch
from torch import Tensor

from ..common.errors import InputError
from ..controllers.sampling import draw_unchecked, require_finite


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF sampling: ``probabilities`` (..., V) and ``uniforms`` (...) in [0, 1) give tokens (...).

    The cumulative sum is in float64, so that a float32 uniform below 1 never selects a token of probability 0.

    Raises:
        InputError: NaN probabilities.
    """
    device = probabilities.device
    if device.type == "mps":  # has no float64
        return draw(probabilities.cpu(), uniforms.cpu()).to(device)
    require_finite(float(probabilities.sum()))
    return draw_unchecked(probabilities, uniforms)


class RandomSource:
    """A private generator; it does not use the global random state, and its draws do not depend on the device.

    Weights need not sum to 1.

    Raises:
        InputError: weights are NaN.
    """

    def __init__(self, seed: int) -> None:
        self.uniform = Random(seed).random  # [0, 1)

    def pick(self, weights: list[float]) -> int:
        """An index drawn by ``weights``; for short lists, where it is faster than :meth:`sample`."""
        cumulative = list(accumulate(weights))
        require_finite(cumulative[-1])
        return bisect_right(cumulative, self.uniform() * cumulative[-1])

    def sample(self, weights: Tensor) -> int:
        """An index drawn by ``weights`` (V,)."""
        if weights.device.type == "mps":  # has no float64
            weights = weights.cpu()
        cumulative = weights.cumsum(-1, dtype=torch.float64)
        mass = float(cumulative[-1])
        require_finite(mass)
        return int(torch.searchsorted(cumulative, self.uniform() * mass, right=True))

    def give_back(self, uniforms: list[float]) -> None:
        """Make ``uniforms`` the next numbers that are drawn: they were drawn and not used."""
        if uniforms:
            self.uniform = chain(uniforms, iter(self.uniform, None)).__next__

    def accept(self, probabilities: list[float]) -> list[bool]:
        """Independent draws with the given ``probabilities``; values above 1 count as 1."""
        return [self.uniform() < probability for probability in probabilities]


def text_seed(*parts: object, signed: bool = False) -> int:
    """64 bits of a hash of ``parts``, such as a seed, a purpose and a prompt's id."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:8], signed=signed)


def sample_seed(seed: int, index: int) -> int:
    """The seed of sample ``index`` of several; that of the first is ``seed``.

    It is derived by a hash, so that neighbouring seeds share no samples.
    """
    if index == 0:
        return seed
    return text_seed(f"{seed}/{index}")


def drawn_for(*parts: object, count: int) -> torch.Tensor:
    """(count,) uniform numbers in [0, 1) that depend on ``parts`` alone, see :func:`text_seed`."""
    return torch.rand(count, generator=torch.Generator().manual_seed(text_seed(*parts, signed=True)))


def seeds_of(seed: int | Sequence[int], count: int) -> list[int]:
    """The seeds of ``count`` texts: the given list, or seeds derived from a single one, which is the first.

    Raises:
        InputError: ``seed`` is not a whole number, or a list of other length.
    """
    if isinstance(seed, int) and not isinstance(seed, bool):
        return [sample_seed(seed, index) for index in range(count)]
    if not isinstance(seed, list | tuple) or not all(isinstance(s, int) and not isinstance(s, bool) for s in seed):
        raise InputError(f"seed={seed!r}: must be a whole number, or a list with one for each text")
    if len(seed) != count:
        raise InputError(f"seed: a list of {len(seed)} for {count} in all; give one for each, or a single one")
    return list(seed)
