"""The shape of t_v(n), the time of a verification, where it is not a line in the number n of tokens.

A forward over few tokens often takes as long as a forward over one, because the time is that of reading the weights.
Over more tokens the time grows in steps, because kernels process tokens in blocks. A shape has *equivalent tokens* w(n)
at measured numbers n: t_v(n) = t_verify + t_verify_token·w(n), with w(1) = 1. Between measured numbers w is
interpolated; it never decreases. Without a shape, w(n) = n, and t_v is a line.

The shape has no unit, so that everything that changes the two times keeps it: the fit to rounds while decoding, and
times of another unit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from ...common.errors import InputError, is_finite

if TYPE_CHECKING:
    from .cost_model import CostModel

Shape = tuple[tuple[int, float], ...]  # pairs of n and w(n), ascending; empty for a line

BENT = 0.05  # relative difference of a time from a line, above which the times have a shape
LEAST_POINTS = 4  # minimum number of measured numbers of tokens of a shape
TYPICAL = 8  # longest draft over which ``t_verify_token`` is the mean time of a further token
LEAST_SHARE = 0.01  # minimum of the time of a further token, as a share of the time for one token


def equivalent_tokens(shape: Shape, tokens: float) -> float:
    """Return w of a number of ``tokens``.

    Beyond the last measured number, w is a line with the mean slope of the upper half of the measured numbers: the last
    interval alone may be a flat part or a step.
    """
    if not shape:
        return tokens
    index = bisect_right(shape, tokens, key=lambda point: point[0])
    if index == 0:
        return shape[0][1]
    low, before = shape[index - 1]
    if index == len(shape):
        return before + _last_slope(shape) * (tokens - low)
    high, after = shape[index]
    return min(before + (after - before) * (tokens - low) / (high - low), after)


def least_slope(shape: Shape, tokens: float) -> float:
    """Return the smallest mean slope of w from ``tokens`` to any larger number of tokens."""
    if not shape:
        return 1.0
    start = equivalent_tokens(shape, tokens)
    chords = [(weight - start) / (number - tokens) for number, weight in shape if number > tokens]
    return min([*chords, _last_slope(shape)])


@lru_cache(maxsize=64)
def _last_slope(shape: Shape) -> float:
    """Return the mean slope over the upper half of the measured numbers."""
    last, weight = shape[-1]
    middle, before = next((number, w) for number, w in reversed(shape[:-1]) if 2 * number <= last or number == 1)
    return (weight - before) / (last - middle)


def check_shape(shape: Shape) -> None:
    """Raise InputError if ``shape`` does not begin at one token, or decreases."""
    if not shape:
        return
    numbers, weights = zip(*shape, strict=True)
    if len(shape) < 2 or shape[0] != (1, 1.0):
        raise InputError(f"verify_shape={shape}: must begin with [1, 1.0] and have at least two points")
    if not all(map(is_finite, weights)) or any(low >= high for low, high in pairwise(numbers)):
        raise InputError(f"verify_shape={shape}: numbers of tokens must ascend, and equivalent tokens must be finite")
    if any(low > high for low, high in pairwise(weights)):
        raise InputError(f"verify_shape={shape}: equivalent tokens must not decrease")


def shaped(line: CostModel, seconds: Mapping[int, float]) -> CostModel:
    """Return ``line`` with the shape of measured times; ``line`` itself if it explains the times.

    Noise must not make more tokens faster. Other processes only lengthen forwards, so that a time is at most the times
    of all larger numbers. No token is free: the time of a token is at least ``LEAST_SHARE`` of that of one token.

    Args:
        line: the cost model that was fitted to the times as a line.
        seconds: measured seconds of verifications by number of tokens.
    """
    numbers = sorted(seconds)
    if len(numbers) < LEAST_POINTS or numbers[0] != 1:
        return line
    times = [min(seconds[more] for more in numbers if more >= number) for number in numbers]
    if all(abs(line.round(n - 1, 0) - time) <= BENT * time for n, time in zip(numbers, times, strict=True)):
        return line
    start = min(line.t_draft_start, times[1] - times[0])  # the part of the first step that is no property of tokens
    added = [0.0]
    for (before, number), time in zip(pairwise(numbers), times[1:], strict=True):
        least = added[-1] + LEAST_SHARE * times[0] * (number - before)
        added.append(max(time - start - times[0], least))
    points = [*zip(numbers, added, strict=True)]
    typical = [(n - 1, more) for n, more in points[1:] if n - 1 <= TYPICAL] or [(points[1][0] - 1, points[1][1])]
    slope = sum(k * more for k, more in typical) / sum(k * k for k, _ in typical)
    per_token = min(slope, times[0])
    shape = tuple((n, 1.0 + more / per_token) for n, more in points)
    return replace(
        line, t_verify=times[0] - per_token, t_verify_token=per_token, t_draft_start=start, verify_shape=shape
    )
