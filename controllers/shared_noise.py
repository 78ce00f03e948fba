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
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]


def _signed(number: int) -> int:
    """The 64-bit integer in two's complement with the lowest 64 bits of ``number``."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


# SplitMix64: the step of its counter, and the two multipliers of its mixing function. Positions have a step of their
# own, an odd number without a simple ratio to the first.
TOKEN_STEP, POSITION_STEP = 0x9E3779B97F4A7C15, 0x5851F42D4C957F2D
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = (1 << 64) - 1
_STEP, _FIRST, _SECOND = np.uint64(TOKEN_STEP), np.uint64(FIRST), np.uint64(SECOND)
_ELEVEN, _TWENTY_SEVEN, _THIRTY, _THIRTY_ONE = map(np.uint64, (11, 27, 30, 31))
CHUNK = 1 << 14  # tokens computed at once on a CPU, so that the numbers stay in its cache


def seed_key(seed: int) -> int:
    """64 bits of a hash of ``seed``, which may be any integer; they are used for this noise alone."""
    digest = hashlib.sha256(f"shared noise\0{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def position_key(key: int, position: int) -> int:
    """The key of a position's noise, from that of the seed: 64 bits as a signed number."""
    z = (key + position * POSITION_STEP) & WORD
    z = (z ^ (z >> 30)) * FIRST & WORD
    z = (z ^ (z >> 27)) * SECOND & WORD
    return _signed(z ^ (z >> 31))


# On the host, which waits for the tokens. In NumPy an operation of few numbers starts several times faster.


def choose(probabilities: Tensor, tokens: Tensor, keys: Sequence[int]) -> tuple[list[int], float]:
    """The tokens with the largest p/E in N distributions, and the sum of these p/E: NaN if a probability is.

    Args:
        probabilities: (N, k); a token with probability 0 is not chosen.
        tokens: (N, k) their tokens.
        keys: N keys of positions.
    """
    if probabilities.device.type != "cpu":
        if probabilities.device.type == "mps":  # has no float64
            probabilities, tokens = probabilities.cpu(), tokens.cpu()
        values, places = scores(probabilities, tokens, torch.tensor(keys).to(probabilities.device)).max(-1)
        return tokens.gather(-1, places.unsqueeze(-1)).squeeze(-1).tolist(), float(values.sum())
    rows, ids = probabilities.numpy(), tokens.numpy()
    if rows.shape[1] > CHUNK or len(rows) == 1:
        winners = [_best(*one) for one in zip(rows, ids, keys, strict=True)]
        return [token for token, _ in winners], sum(value for _, value in winners)
    products = rows / _negative_exponentials(np.array(keys)[:, None], ids)
    places = products.argmin(-1)[:, None]
    mass = -float(np.take_along_axis(products, places, -1).sum())
    return np.take_along_axis(ids, places, -1)[:, 0].tolist(), mass


def _best(row: Array, ids: Array, key: int) -> tuple[int, float]:
    """The token with the largest p/E in one distribution (k,), in chunks, and its p/E; NaN counts as the largest."""
    best, token, keys = 1.0, 0, np.array([key])
    for start in range(0, len(row), CHUNK):
        piece = slice(start, start + CHUNK)
        products = row[piece] / _negative_exponentials(keys, ids[piece])
        place = int(products.argmin())
        value = float(products[place])
        if value < best or math.isnan(value):
            best, token = value, int(ids[start + place])
            if math.isnan(value):
                break
    return token, -best


def _negative_exponentials(keys: Array, tokens: Array) -> Array:
    """-E in float64 of ``tokens`` at the positions with ``keys``, see :func:`exponentials`."""
    z = tokens.view(np.uint64) * _STEP
    z += keys.view(np.uint64)
    z ^= z >> _THIRTY
    z *= _FIRST
    z ^= z >> _TWENTY_SEVEN
    z *= _SECOND
    z ^= z >> _THIRTY_ONE
    z >>= _ELEVEN
    uniforms = z + 0.5
    uniforms *= -(2.0**-53)
    np.log1p(uniforms, out=uniforms)
    return uniforms


# On a device, without a read by the host


def scores(probabilities: Tensor, tokens: Tensor | None, keys: Tensor) -> Tensor:
    """p/E (N, k) in float64. In descending order the places are draws without replacement.

    Args:
        probabilities, tokens: as for :func:`choose`; None for the tokens 0 … k - 1.
        keys: (N,) keys of positions.
    """
    if tokens is None:
        tokens = torch.arange(probabilities.shape[-1], device=probabilities.device)
    return probabilities / exponentials(keys.unsqueeze(-1), tokens.expand(probabilities.shape))


def exponentials(keys: Tensor, tokens: Tensor) -> Tensor:
    """E (..., k) in float64 of ``tokens`` (..., k) at the positions with ``keys`` (..., 1).

    With the 53 bits n of the hash ``u = (n + 1/2) / 2^53`` is a number in (0, 1), and ``E = -log(1 - u)``: of tokens
    that win, u is small and E is exact. Products of integers keep their lowest 64 bits.
    """
    z = tokens * _signed(TOKEN_STEP) + keys
    z = (z ^ ((z >> 30) & (WORD >> 30))) * _signed(FIRST)  # the masks make the shifts logical
    z = (z ^ ((z >> 27) & (WORD >> 27))) * _signed(SECOND)
    z = ((z ^ ((z >> 31) & (WORD >> 31))) >> 11) & (WORD >> 11)
    return -torch.log1p((z.double() + 0.5) * -(2.0**-53))
