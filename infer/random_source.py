"""The random sources of the decoder.

All random draws use these classes, so that tests can enumerate *all* outcomes of the decoder and compare its exact
output distribution with the target's. A :class:`RandomSource` draws every token with a new random number. With
:class:`SharedNoise` the target's token at a position depends on the seed and the target only, not on the draft.
"""

from __future__ import annotations

import hashlib
import secrets
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate, chain
from random import Random
from typing import Protocol, Self

import torch
from torch import Tensor

from ..common.errors import InputError, counted
from ..controllers.sampling import draw_unchecked, require_finite
from ..controllers.shared_noise import choose, position_key, scores, seed_key


class Distributions(Protocol):
    """Distributions to draw from: a :class:`~specpilot.infer.core.TokenDistribution`."""

    @property
    def probabilities(self) -> Tensor: ...

    @property
    def tokens(self) -> Tensor | None: ...

    def sample(self, row: int, rng: RandomSource) -> int: ...

    def part(self, start: int, end: int) -> Self: ...


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Sample tokens (...) by the inverse CDF.

    The cumulative sum is in float64, so that a float32 uniform below 1 never selects a token of probability 0.

    Args:
        probabilities: (..., V) probabilities.
        uniforms: (...) numbers in [0, 1).

    Raises:
        InputError: a probability is NaN.
    """
    device = probabilities.device
    if device.type == "mps":  # mps has no float64
        return draw(probabilities.cpu(), uniforms.cpu()).to(device)
    require_finite(float(probabilities.sum()))
    return draw_unchecked(probabilities, uniforms)


class RandomSource:
    """A private random generator, independent of the global random state; its draws do not depend on the device.

    Weights need not sum to 1.

    Raises:
        InputError: weights are NaN.
    """

    def __init__(self, seed: int) -> None:
        self.uniform = Random(seed).random  # [0, 1)

    def pick(self, weights: list[float]) -> int:
        """Return an index drawn by ``weights``; for short lists this is faster than :meth:`sample`."""
        cumulative = list(accumulate(weights))
        require_finite(cumulative[-1])
        return bisect_right(cumulative, self.uniform() * cumulative[-1])

    def sample(self, weights: Tensor) -> int:
        """Return an index drawn by ``weights`` (V,)."""
        if weights.device.type == "mps":  # mps has no float64
            weights = weights.cpu()
        cumulative = weights.cumsum(-1, dtype=torch.float64)
        mass = float(cumulative[-1])
        require_finite(mass)
        return int(torch.searchsorted(cumulative, self.uniform() * mass, right=True))

    def at(self, position: int) -> RandomSource:
        """Return the source of a round's tokens, whose first token is at ``position`` of the text; here ``self``."""
        return self

    def token(self, distribution: Distributions, row: int, depth: int) -> int:
        """Return a token drawn from distribution ``row``, for the place ``depth`` tokens after the round's first."""
        return distribution.sample(row, self)

    def draws(self, distribution: Distributions, row: int, depth: int) -> Iterator[int]:
        """Yield entries of distribution ``row``, drawn without replacement; arguments as for :meth:`token`."""
        remaining = distribution.probabilities[row]
        while bool(remaining.any()):
            index = self.sample(remaining)
            yield index
            remaining = without(remaining, index)

    def number(self, depth: int) -> float:
        """Return the random number for a token that the device draws, ``depth`` tokens after the round's first.

        :func:`~specpilot.controllers.sampling.draw_by` uses the number.
        """
        return self.uniform()

    def give_back(self, numbers: Sequence[float]) -> None:
        """Return unused random numbers to the source, which draws them again next."""
        if numbers:
            self.uniform = chain(numbers, iter(self.uniform, None)).__next__

    def accept(self, probabilities: list[float]) -> list[bool]:
        """Return independent draws that are true with ``probabilities``; values above 1 count as 1."""
        return [self.uniform() < probability for probability in probabilities]


class SharedNoise(RandomSource):
    """Noise that target and draft share (:mod:`~specpilot.controllers.shared_noise`).

    A token drawn from a distribution depends only on the seed, the token's position in the text, and the distribution.
    Other random choices, such as a router's arm, are drawn as by :class:`RandomSource`.

    Attributes:
        key: the key of the seed.
        start: the position of a round's first token.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.key, self.start = seed_key(seed), 0

    def at(self, position: int) -> SharedNoise:
        source = copy(self)
        source.start = position
        return source

    def number(self, depth: int) -> int:
        """Return the key of the noise for the position ``depth`` tokens after the round's first token."""
        return position_key(self.key, self.start + depth)

    def give_back(self, numbers: Sequence[float]) -> None:
        """Do nothing, because the noise of a position is always the same."""

    def token(self, distribution: Distributions, row: int, depth: int) -> int:
        return self.chain(distribution.part(row, row + 1), depth)[0]

    def chain(self, distributions: Distributions, depth: int = 0) -> list[int]:
        """Return a token of each of N distributions, for the positions from ``depth`` tokens after the first on."""
        probabilities = distributions.probabilities
        keys = [self.number(depth + row) for row in range(len(probabilities))]
        chosen, mass = choose(probabilities, distributions.tokens, keys)
        require_finite(mass)
        return chosen

    def draws(self, distribution: Distributions, row: int, depth: int) -> Iterator[int]:
        single = distribution.part(row, row + 1)
        keys = torch.tensor([self.number(depth)], device=single.probabilities.device)
        remaining = scores(single.probabilities, single.tokens, keys)[0]
        require_finite(float(remaining.max()))
        while True:
            index = int(remaining.argmax())
            if float(remaining[index]) == 0:
                return
            yield index
            remaining[index] = 0


def without(q: Tensor, index: int) -> Tensor:
    """Return ``q`` (V,) conditioned on not drawing ``index``; all zeros if no other entry is possible."""
    q = q.clone()
    q[index] = 0
    mass = q.sum()
    return q / mass if float(mass) > 0 else q


def text_seed(*parts: object, signed: bool = False) -> int:
    """Return 64 bits of a hash of ``parts``, such as a seed, a purpose and a prompt's id."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:8], signed=signed)


def drawn_seed() -> int:
    """Return a seed from the system's random numbers."""
    return secrets.randbits(63)


def sample_seed(seed: int, index: int) -> int:
    """Return the seed of sample ``index`` of several; the first sample has the seed ``seed``.

    Further seeds are hashes, so that neighbouring seeds share no samples.
    """
    if index == 0:
        return seed
    return text_seed(f"{seed}/{index}")


def drawn_for(*parts: object, count: int) -> torch.Tensor:
    """Return uniform numbers (count,) in [0, 1) that depend on ``parts`` only, see :func:`text_seed`."""
    return torch.rand(count, generator=torch.Generator().manual_seed(text_seed(*parts, signed=True)))


def text_seeds(seed: int | Sequence[int], count: int) -> list[int]:
    """Return the seeds of ``count`` texts.

    Args:
        seed: a list of ``count`` seeds, or the seed of the first text, from which the others are derived.
        count: number of texts.

    Raises:
        InputError: ``seed`` is not a whole number, or a list of another length.
    """
    if isinstance(seed, int) and not isinstance(seed, bool):
        return [sample_seed(seed, index) for index in range(count)]
    if not isinstance(seed, list | tuple) or not all(isinstance(s, int) and not isinstance(s, bool) for s in seed):
        raise InputError(f"seed={seed!r}: must be a whole number, or a list with one for each text")
    if len(seed) != count:
        raise InputError(
            f"seed: a list of {len(seed)} for {counted(count, 'text')}; give one seed for each text, or a single seed"
        )
    return list(seed)
