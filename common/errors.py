"""The error for bad user input, and a check of numbers. Other exceptions are defects and keep their traceback."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import SupportsFloat


class InputError(ValueError):
    """Bad input, in one line: name, value and remedy. The command line prints it and exits with code 2."""


@contextmanager
def optional_import(extra: str) -> Iterator[None]:
    """Context manager for the import of a package that comes with ``extra``.

    Raises:
        InputError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise InputError(f"{package} is not installed: pip install 'specpilot[{extra}]'") from error


def is_finite(value: SupportsFloat) -> bool:
    """False also for a whole number beyond the largest float, with which ``math.isfinite`` fails."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
