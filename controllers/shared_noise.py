"""Noise that target and draft share, so that a seed's text does not depend on the draft.

Daliri, Musco and Suresh 2024, *Coupling without Communication and Drafter-Invariant Speculative Decoding*
(arXiv 2408.07978): with Gumbel noise g_t(i) for every position t and token i, ``argmax_i log p_t(i) + g_t(i)`` is a
sample of p_t, and the same noise with the draft's q_t often gives the same token. Here the noise is written as
exponential variables ``E_t(i) = exp(-g_t(i))``, so that the sample is ``argmin_i E_t(i) / p_t(i)``.

E is a pure function of a seed, the position and the token: integers are mixed as in SplitMix64 (Steele, Lea and Flood
2014), which gives the same bits on every device, and are converted to float64. The position counts the tokens of the
text from its start, the prompt included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T", "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", Tensor)


def _signed(number: int) -> int:
    """The 64-bit integer in two's complement with the lowest 64 bits of ``number``."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


# SplitMix64: the step of its counter, and the two multipliers of its mixing function. Positions have a step of their
# own, the same as in PCG's multiplier, which is odd and has no simple ratio to the first.
TOKEN_STEP = _signed(0x9E3779B97F4A7C15)
POSITION_STEP = _signed(0x5851F42D4C957F2D)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
CHUNK = 1 << 14  # tokens computed at once on a CPU, so that the numbers stay in its cache


def seed_key(seed: int) -> int:
    """64 bits of a hash of ``seed``, which may be any integer; they are used for this noise alone."""
    digest = hashlib.sha256(f"shared noise\0{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def position_key(key: int, position: int) -> int:
    """The key of a position's noise, from that of the seed."""
    z = key + position * POSITION_STEP
    for shift, factor in ((30, FIRST), (27, SECOND), (31, 1)):
        z &= (1 << 64) - 1
        z = (z ^ (z >> shift)) * factor
    return _signed(z)


def exponentials(keys: Tensor, tokens: Tensor) -> Tensor:
    """E (..., k) in float64 of ``tokens`` (..., k) at the positions with ``keys`` (..., 1)."""
    # u = (n + 1/2) / 2^53 is a number in (0, 1), and E = -log(1 - u): of tokens that win, u is small and exact.
    numbers = _mixed(tokens * TOKEN_STEP + keys)
    return -torch.log1p((numbers.double() + 0.5) * -(2.0**-53))


def _exponentials(keys: np.ndarray | np.int64, tokens: np.ndarray) -> np.ndarray:
    """As :func:`exponentials`, in NumPy, which starts an operation faster: 50 tokens take a third of the time.

    The last bit of the logarithm may differ.
    """
    with np.errstate(over="ignore"):
        uniforms = _mixed(tokens * TOKEN_STEP + keys) + 0.5
    result: np.ndarray = -np.log1p(uniforms * -(2.0**-53))
    return result


def _mixed(z: T) -> T:
    """The upper 53 bits of SplitMix64's mixing function of integers; products keep their lowest 64 bits."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * FIRST  # the masks make the shifts logical
    z = (z ^ ((z >> 27) & (2**37 - 1))) * SECOND
    return ((z ^ ((z >> 31) & (2**33 - 1))) >> 11) & (2**53 - 1)


def choose(probabilities: Tensor, tokens: Tensor | None, keys: Tensor) -> Tensor:
    """The place of the token with the smallest E/p of each distribution, for the host, which waits for it.

    Args:
        probabilities: (N, k); a place with probability 0 is never chosen.
        tokens: (N, k) the tokens of these; None for 0 … k - 1.
        keys: (N,) those of the positions.

    Returns:
        Places (N,). What they are where probabilities are NaN is undefined.
    """
    if probabilities.shape[-1] == 1:  # the only token
        return torch.zeros(len(probabilities), dtype=torch.long, device=probabilities.device)
    if probabilities.device.type == "mps":  # has no float64
        on_host = None if tokens is None else tokens.cpu()
        return choose(probabilities.cpu(), on_host, keys.cpu()).to(probabilities.device)
    if probabilities.device.type == "cpu":
        rows = probabilities.numpy()
        ids = [None] * len(rows) if tokens is None else tokens.numpy()
        return torch.tensor([_least(row, own, key) for row, own, key in zip(rows, ids, keys.tolist(), strict=True)])
    return ratios(probabilities, tokens, keys).argmin(-1)


def ratios(probabilities: Tensor, tokens: Tensor | None, keys: Tensor) -> Tensor:
    """E/p (N, k) in float64, infinite where p is 0. In ascending order the places are draws without replacement.

    Arguments as for :func:`choose`.
    """
    if tokens is None:
        tokens = torch.arange(probabilities.shape[-1], device=probabilities.device)
    return exponentials(keys.unsqueeze(-1), tokens.expand(probabilities.shape)) / probabilities.double()


def _least(row: np.ndarray, tokens: np.ndarray | None, key: int) -> int:
    """The place of the smallest E/p of one distribution (k,), computed in chunks."""
    best, place, keys = np.inf, 0, np.int64(key)
    for start in range(0, len(row), CHUNK):
        piece = row[start : start + CHUNK]
        some = np.arange(start, start + len(piece)) if tokens is None else tokens[start : start + CHUNK]
        with np.errstate(divide="ignore"):
            values = _exponentials(keys, some) / piece
        least = int(values.argmin())
        if values[least] < best:
            best, place = values[least], start + least
    return place


def keys_of(key: int, positions: Sequence[int], device: torch.device) -> Tensor:
    """(N,) the keys of ``positions``, for the noise with the seed's ``key``."""
    keys = torch.tensor([position_key(key, position) for position in positions])
    return keys.to(device, non_blocking=True)
