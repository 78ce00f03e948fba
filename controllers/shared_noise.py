"""Noise that target and draft share, so that a seed's text does not depend on the draft.

Daliri, Musco and Suresh 2024, *Coupling without Communication and Drafter-Invariant Speculative Decoding*
(arXiv 2408.07978): with Gumbel noise g_t(i) for every position t and token i, ``argmax_i log p_t(i) + g_t(i)`` is a
sample of p_t, and the same noise with the draft's q_t often gives the same token. Here the noise is written as
exponential variables ``E_t(i) = exp(-g_t(i))``, so that the sample is ``argmax_i p_t(i) / E_t(i)``.

E is a pure function of a seed, the position and the token: integers are mixed as in SplitMix64 (Steele, Lea and Flood
2014), which gives the same bits on every device, and are converted to float64. The position counts the tokens of the
text from its start, the prompt included.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]


def _signed(number: int) -> int:
    """Return the signed 64-bit integer with the lowest 64 bits of ``number``."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


# SplitMix64: the step of its counter, and the two multipliers of its mixing function. Positions have a step of their
# own, an odd number without a simple ratio to the first.
TOKEN_STEP, POSITION_STEP = 0x9E3779B97F4A7C15, 0x5851F42D4C957F2D
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = (1 << 64) - 1
# For NumPy, whose operations with arrays of no dimension are a third faster than with numbers.
_STEP, _FIRST, _SECOND = (np.array(number, np.uint64) for number in (TOKEN_STEP, FIRST, SECOND))
_ELEVEN, _TWENTY_SEVEN, _THIRTY, _THIRTY_ONE = (np.array(number, np.uint64) for number in (11, 27, 30, 31))
SHORT = 1 << 12  # maximum number of tokens of a distribution that is searched without a bound
CHUNK = 1 << 14  # tokens computed at once on a CPU, so that the numbers stay in its cache
HIGH = int(sys.byteorder == "little")  # index of the half of a 64-bit number with the highest bits
ABOVE = 2.0**32 * (1 + 2.0**-20)  # a little more than 2^32, for the rounding of products in single precision


def seed_key(seed: int) -> int:
    """Return the key of the noise of ``seed``, 64 bits of its hash as an unsigned number; a seed is any integer."""
    digest = hashlib.sha256(f"shared noise\0{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def position_key(key: int, position: int) -> int:
    """Return the key of the noise at ``position``, 64 bits as a signed number.

    Args:
        key: the key of the seed, from :func:`seed_key`.
        position: number of tokens before it, the prompt included.
    """
    z = (key + position * POSITION_STEP) & WORD
    z = (z ^ (z >> 30)) * FIRST & WORD
    z = (z ^ (z >> 27)) * SECOND & WORD
    return _signed(z ^ (z >> 31))


# On the host, which waits for the tokens. In NumPy an operation of few numbers starts several times faster.


def choose(probabilities: Tensor, tokens: Tensor | None, keys: Sequence[int]) -> tuple[list[int], float]:
    """Return the token with the largest p/E in each of N distributions, and the sum of these p/E.

    E is the noise of the module's description, and p/E is the largest for the token that is drawn. The sum is NaN if a
    probability is NaN.

    Args:
        probabilities: (N, k) probabilities; a token with probability 0 is not chosen.
        tokens: (N, k) their tokens; None for the tokens 0 … k - 1.
        keys: for each distribution the key of its position, from :func:`position_key`.
    """
    if probabilities.device.type != "cpu":
        if probabilities.device.type == "mps":  # mps has no float64
            probabilities, tokens = probabilities.cpu(), None if tokens is None else tokens.cpu()
        values, places = scores(probabilities, tokens, torch.tensor(keys).to(probabilities.device)).max(-1)
        chosen = places if tokens is None else tokens.gather(-1, places.unsqueeze(-1)).squeeze(-1)
        return chosen.tolist(), float(values.sum())
    rows, ids = probabilities.numpy(), None if tokens is None else tokens.numpy()
    multiples = _multiples(rows) if ids is None else ids.view(np.uint64) * _STEP
    if len(rows) == 1 or rows.shape[1] > SHORT:
        winners = [_best(*inputs) for inputs in zip(rows, multiples, keys, strict=True)]
        best, mass = [index for index, _ in winners], sum(value for _, value in winners)
    else:
        products = rows / _negative_exponentials(_mixed(multiples + _words(keys)[:, None]))
        best, mass = products.argmin(-1).tolist(), -float(products.min(-1).sum())
    return (best if ids is None else [int(ids[row, index]) for row, index in enumerate(best)]), mass


def _best(row: Array, multiples: Array, key: int) -> tuple[int, float]:
    """Return the index of the largest p/E in one distribution (k,), and this p/E; NaN counts as the largest.

    Long distributions are searched in chunks. E = -log(1 - u) is larger than u, so a token can have a larger p/E than
    the best so far, s, only if u < p/s. Most tokens are excluded by comparing the highest 32 bits of their hash with
    p/s in single precision, and need no logarithm.

    Args:
        row: (k,) probabilities.
        multiples: (k,) multiples of TOKEN_STEP, see :func:`_multiples`.
        key: the key of the position.
    """
    word = _words([key])
    if len(row) <= SHORT:
        products = row / _negative_exponentials(_mixed(multiples + word))
        index = int(products.argmin())
        return index, -float(products[index])
    index = int(row.argmax())
    best = float(row[index] / _negative_exponentials(_mixed(multiples[index : index + 1] + word))[0])
    if not best < 0:  # NaN, or no token has a probability
        return index, -best
    buffers: list[Array] = [
        np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.float32), np.empty(CHUNK, row.dtype),
    ]  # fmt: skip
    for start in range(0, len(row), CHUNK):
        p, chunk = row[start : start + CHUNK], multiples[start : start + CHUNK]
        z, scratch, high, bounds = (buffer[: len(p)] for buffer in buffers)
        _mixed(np.add(chunk, word, out=z), scratch)
        np.copyto(high, z.view(np.uint32)[HIGH::2])
        np.multiply(p, p.dtype.type(-ABOVE / best), out=bounds)
        bounds += 2  # for the missing last step of the hash, and for the bits that are left out
        candidates = np.flatnonzero(high < bounds)
        if len(candidates):
            products = p[candidates] / _negative_exponentials(z[candidates])
            first = int(products.argmin())
            if products[first] < best:
                index, best = start + int(candidates[first]), float(products[first])
    return index, -best


def _multiples(rows: Array) -> Array:
    """Return TOKEN_STEP times the tokens 0 … k - 1, modulo 2^64, for each of ``rows`` (N, k)."""
    return np.broadcast_to(_multiples_below(rows.shape[1]), rows.shape)


@lru_cache(maxsize=4)  # sizes of vocabularies
def _multiples_below(count: int) -> Array:
    """Return TOKEN_STEP times the tokens 0 … count - 1, modulo 2^64."""
    multiples = np.arange(count, dtype=np.uint64) * _STEP
    multiples.flags.writeable = False
    return multiples


def _words(keys: Sequence[int]) -> Array:
    """Return the signed numbers ``keys`` as unsigned numbers."""
    return np.array(keys, np.int64).view(np.uint64)


def _mixed(z: Array, scratch: Array | None = None) -> Array:
    """Mix ``z`` in place as SplitMix64, without the last step ``z ^ z >> 31``, which keeps the highest 31 bits.

    Args:
        scratch: an array to overwrite. Default: a new one.
    """
    scratch = np.right_shift(z, _THIRTY, out=scratch)
    z ^= scratch
    z *= _FIRST
    z ^= np.right_shift(z, _TWENTY_SEVEN, out=scratch)
    z *= _SECOND
    return z


def _negative_exponentials(z: Array) -> Array:
    """Return -E in float64 (:func:`exponentials`) for hashes without their last step (:func:`_mixed`)."""
    z = z ^ (z >> _THIRTY_ONE)
    z >>= _ELEVEN
    uniforms = z + 0.5
    uniforms *= -(2.0**-53)
    np.log1p(uniforms, out=uniforms)
    return uniforms


# On a device, without a read by the host


def scores(probabilities: Tensor, tokens: Tensor | None, keys: Tensor) -> Tensor:
    """Return p/E (N, k) in float64; in descending order of p/E the tokens are drawn without replacement.

    Args:
        probabilities, tokens: as for :func:`choose`; None for the tokens 0 … k - 1.
        keys: (N,) keys of positions.
    """
    if tokens is None:
        tokens = torch.arange(probabilities.shape[-1], device=probabilities.device)
    return probabilities / exponentials(keys.unsqueeze(-1), tokens.expand(probabilities.shape))


def exponentials(keys: Tensor, tokens: Tensor) -> Tensor:
    """Return E (..., k) in float64 of ``tokens`` (..., k) at the positions with ``keys`` (..., 1).

    The hash has 53 bits n, ``u = (n + 1/2) / 2^53`` is a number in (0, 1), and ``E = -log(1 - u)``. For chosen tokens u
    is small, so that E is exact. Products of integers keep their lowest 64 bits.
    """
    z = tokens * _signed(TOKEN_STEP) + keys
    z = (z ^ ((z >> 30) & (WORD >> 30))) * _signed(FIRST)  # the masks make the shifts logical
    z = (z ^ ((z >> 27) & (WORD >> 27))) * _signed(SECOND)
    z = ((z ^ ((z >> 31) & (WORD >> 31))) >> 11) & (WORD >> 11)
    return -torch.log1p((z.double() + 0.5) * -(2.0**-53))
