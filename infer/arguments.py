"""Checks of arguments that Python callers give: each refusal names the argument, its value and what to give."""

from __future__ import annotations

from collections.abc import Sequence

from ..controllers.errors import InputError
from .random_source import sample_seed


def check_count(name: str, value: object) -> int:
    """``value``, if it is a whole number of at least 1.

    Raises:
        InputError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name}={value!r}: must be a whole number, at least 1")
    if value < 1:
        raise InputError(f"{name}={value}: must be at least 1")
    return value


def check_boolean(name: str, value: bool) -> None:
    """Refuse what is neither True nor False.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, bool):
        raise InputError(f"{name}={value!r}: must be True or False")


def seeds_of(seed: int | Sequence[int], count: int) -> list[int]:
    """The seeds of ``count`` texts: those given, or derived from one; the first is then that one.

    Raises:
        InputError: it is no whole number, or there are not ``count`` of them.
    """
    if isinstance(seed, int) and not isinstance(seed, bool):
        return [sample_seed(seed, index) for index in range(count)]
    if not isinstance(seed, list | tuple) or not all(isinstance(s, int) and not isinstance(s, bool) for s in seed):
        raise InputError(f"seed={seed!r}: must be a whole number, or a list with one for each text")
    if len(seed) != count:
        raise InputError(f"seed: {len(seed)} seeds for {count} texts; give one for each, or a single one")
    return list(seed)
