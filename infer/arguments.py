"""Checks of arguments from Python callers; errors name the argument, its value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from ..common.errors import InputError
from .random_source import sample_seed


def check_count(name: str, value: object) -> int:
    """Return ``value`` if it is a whole number of at least 1.

    Raises:
        InputError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name}={value!r}: must be a whole number, at least 1")
    if value < 1:
        raise InputError(f"{name}={value}: must be at least 1")
    return value


def check_boolean(name: str, value: bool) -> None:
    """Raise InputError if ``value`` is neither True nor False."""
    if not isinstance(value, bool):
        raise InputError(f"{name}={value!r}: must be True or False")


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
        raise InputError(f"seed: {len(seed)} seeds for {count} texts; give one for each, or a single one")
    return list(seed)
