"""The random sources of the decoder.

All random draws go through these classes, so that tests can enumerate *all* outcomes of the decoder and compare its
exact output distribution with the target's. A :class:`RandomSource` draws every token with a new number. With
:class:`SharedNoise` the target's token at a position depends on the seed and the target alone, whatever is drafted.
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

from ..common.errors import InputError
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

    def at(self, position: int) -> RandomSource:
        """The source of a round's tokens, the first of which is at ``position`` of the text; here the same for all."""
        return self

    def token(self, distribution: Distributions, row: int, depth: int) -> int:
        """A token drawn from distribution ``row``, ``depth`` tokens after the round's first."""
        return distribution.sample(row, self)

    def draws(self, distribution: Distributions, row: int, depth: int) -> Iterator[int]:
        """Places of distribution ``row``, drawn without replacement; arguments as for :meth:`token`."""
        left = distribution.probabilities[row]
        while bool(left.any()):
            place = self.sample(left)
            yield place
            left = without(left, place)

    def number(self, depth: int) -> float:
        """The number that draws a token which the host does not read.

        :func:`~specpilot.controllers.sampling.draw_by` uses it. The token is ``depth`` tokens after the round's first.
        """
        return self.uniform()

    def give_back(self, numbers: Sequence[float]) -> None:
        """Make ``numbers`` the next ones that are drawn: they were drawn and not used."""
        if numbers:
            self.uniform = chain(numbers, iter(self.uniform, None)).__next__

    def accept(self, probabilities: list[float]) -> list[bool]:
        """Independent draws with the given ``probabilities``; values above 1 count as 1."""
        return [self.uniform() < probability for probability in probabilities]


class SharedNoise(RandomSource):
    """Noise that target and draft share (:mod:`~specpilot.controllers.shared_noise`).

    A token drawn from a distribution depends on the seed, its position in the text, and the distribution alone. What is
    not a token of the text, such as a router's arm, is drawn as by :class:`RandomSource`.

    Attributes:
        key: of the seed.
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
        """The key of the noise ``depth`` tokens after the round's first."""
        return position_key(self.key, self.start + depth)

    def give_back(self, numbers: Sequence[float]) -> None:
        """Do nothing: a position's noise stays the same."""

    def token(self, distribution: Distributions, row: int, depth: int) -> int:
        return self.chain(distribution.part(row, row + 1), depth)[0]

    def chain(self, distributions: Distributions, depth: int = 0) -> list[int]:
        """A token of each of N distributions, of the positions from ``depth`` tokens after the round's first on."""
        probabilities = distributions.probabilities
        keys = [self.number(depth + row) for row in range(len(probabilities))]
        chosen, mass = choose(probabilities, distributions.tokens, keys)
        require_finite(mass)
        return chosen

    def draws(self, distribution: Distributions, row: int, depth: int) -> Iterator[int]:
        one = distribution.part(row, row + 1)
        keys = torch.tensor([self.number(depth)], device=one.probabilities.device)
        left = scores(one.probabilities, one.tokens, keys)[0]
        require_finite(float(left.max()))
        while True:
            place = int(left.argmax())
            if float(left[place]) == 0:
                return
            yield place
            left[place] = 0


def without(q: Tensor, place: int) -> Tensor:
    """``q`` (V,) given that ``place`` is not drawn; all zeros if nothing else could be."""
    q = q.clone()
    q[place] = 0
    mass = q.sum()
    return q / mass if float(mass) > 0 else q


def text_seed(*parts: object, signed: bool = False) -> int:
    """64 bits of a hash of ``parts``, such as a seed, a purpose and a prompt's id."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:8], signed=signed)


def drawn_seed() -> int:
    """A seed drawn from the system's random numbers."""
    return secrets.randbits(63)


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
