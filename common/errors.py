"""The error for bad user input, and checks of arguments. Other exceptions are defects and keep their traceback."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import SupportsFloat

# Numbers of errors of the operating system that have a remedy.
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
ENOTSUPP = 524  # Linux's, without a name in Python; some network file systems give it to flock
UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, ENOTSUPP)


class InputError(ValueError):
    """Bad input, in one line: name, value and remedy. The command line prints it and exits with code 2."""


class Misspelt(InputError):
    """A name that nothing has: leaving it out of a list of names is not what was meant."""


def disk_error(error: OSError) -> str:
    """The place, the reason and the remedy of an error of the operating system, in one line."""
    reason = error.strerror or str(error)
    if error.errno in FULL:
        reason = f"{reason}; free space or choose another place"
    elif error.errno in FORBIDDEN:
        reason = f"{reason}; choose another place, or change who may write there"
    elif error.errno in UNLOCKABLE:
        reason = f"files cannot be locked there ({reason}); choose a folder on another disk, for example a local one"
    return reason if error.filename is None else f"{error.filename}: {reason}"


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


@contextmanager
def naming(option: str, value: object) -> Iterator[None]:
    """Name the ``option`` in an InputError of the block that begins with the ``value``.

    ``tinny: no such folder`` becomes ``draft='tinny': no such folder``: what is loaded by name does not know which
    option names it. Errors that begin otherwise are not changed.
    """
    try:
        yield
    except InputError as error:
        name, message = str(value), str(error)
        if not message.startswith(f"{name}: "):
            raise
        raise type(error)(f"{option}={name!r}{message.removeprefix(name)}") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``", did you mean …?"`` for a misspelt ``word``, by the most similar of the ``known``; "" if none is similar."""
    plain = {name.lstrip("-").replace("_", "-"): name for name in known}
    found = get_close_matches(word.lstrip("-").replace("_", "-").lower(), plain, n=1, cutoff=0.7)
    return f", did you mean {plain[found[0]]!r}?" if found else ""


def listed(names: Sequence[str], most: int = 8) -> str:
    """``names`` with commas between them, and of more than ``most`` the first and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(count: int, noun: str) -> str:
    """``1 text``, ``2 texts``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def is_whole(text: str) -> bool:
    """Whether ``text`` is a number that ``int`` reads; ``str.isdigit`` takes "²" too, and any number of digits."""
    return re.fullmatch(r"[0-9]{1,18}", text) is not None


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


def is_finite(value: SupportsFloat) -> bool:
    """False also for a whole number beyond the largest float, with which ``math.isfinite`` fails."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
