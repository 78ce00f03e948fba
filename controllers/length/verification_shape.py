"""The shape of t_v(n), the time of a verification, on machines where it is not linear in the number n of tokens.

A forward over few tokens often takes as long as a forward over one, because the time is that of reading the weights.
Over more tokens the time grows in steps, because kernels process tokens in blocks. A shape has *equivalent tokens* w(n)
at measured numbers n: t_v(n) = t_verify + t_verify_token·w(n), with w(1) = 1. Between measured numbers w is
interpolated; it never decreases. Without a shape, w(n) = n, and t_v is linear.

:func:`.running_cost.shaped` fits the shape to times of single forwards. The shape has no unit. It therefore stays the
same while the fit to rounds changes the times.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import pairwise

from ...common.errors import InputError, is_finite

Shape = tuple[tuple[int, float], ...]  # pairs of n and w(n), ascending; empty for a line


def equivalent_tokens(shape: Shape, tokens: float) -> float:
    """Return the equivalent tokens w(n) of n ``tokens``; n itself for an empty ``shape``.

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
    """Return the smallest mean slope of w from ``tokens`` to any larger number of tokens; 1 for an empty ``shape``."""
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
    """Check that ``shape`` is the shape of a verification's time, or empty.

    Raises:
        InputError: ``shape`` has a single point, does not begin with (1, 1.0), decreases, has numbers of tokens that do
            not ascend, or has a value that is not finite.
    """
    if not shape:
        return
    numbers, weights = zip(*shape, strict=True)
    if len(shape) < 2 or shape[0] != (1, 1.0):
        raise InputError(f"verify_shape={shape}: must begin with [1, 1.0] and have at least two points")
    if not all(map(is_finite, (*numbers, *weights))) or any(low >= high for low, high in pairwise(numbers)):
        raise InputError(f"verify_shape={shape}: numbers of tokens must ascend, and equivalent tokens must be finite")
    if any(low > high for low, high in pairwise(weights)):
        raise InputError(f"verify_shape={shape}: equivalent tokens must not decrease")
