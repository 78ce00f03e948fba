"""The one error a user is meant to read: what was given, and what to do about it.

Everything else that is raised is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Bad input, said in one line: the name, the value and the remedy. The command line prints it and exits with 2."""


@contextmanager
def optional_import(extra: str) -> Iterator[None]:
    """Around the import of a package that comes with an extra of specpilot.

    Raises:
        InputError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise InputError(f"{package} is not installed: pip install 'specpilot[{extra}]'") from error
