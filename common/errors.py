"""The error for bad user input, and checks of arguments. Other exceptions are defects and keep their traceback."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import SupportsFloat

# Error numbers of the operating system for which there is a remedy.
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
ENOTSUPP = 524  # error of flock on some network file systems of Linux; Python has no name for it
UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, ENOTSUPP)


class InputError(ValueError):
    """Bad input, in one line: name, value and remedy. The command line prints it and exits with code 2."""


class Misspelt(InputError):
    """An unknown name in a list of names. It stops a command, while other unusable names may be left out."""


def disk_error(error: OSError) -> str:
    """Return the path, the reason and the remedy of an error of the operating system, in one line."""
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
    """Report a package that cannot be imported in the block as an InputError.

    Args:
        extra: the extra of specpilot that installs the package, for the message.

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
    """Add the name of ``option`` to an InputError of the block that begins with ``value``.

    ``tinny: no such folder`` becomes ``draft='tinny': no such folder``. Functions that load a model by name do not know
    the option that contains the name. Errors with another beginning are not changed.
    """
    try:
        yield
    except InputError as error:
        name, message = str(value), str(error)
        if not message.startswith(f"{name}: "):
            raise
        raise type(error)(f"{option}={name!r}{message.removeprefix(name)}") from error


@contextmanager
def passed_as(keyword: str, option: str) -> Iterator[None]:
    """Name ``option`` in an InputError of the block about the ``keyword`` under which its value is passed on.

    ``length='tinny': no such controller`` becomes ``judge='tinny': no such controller``. Other errors are not changed.
    """
    try:
        yield
    except InputError as error:
        message = str(error)
        if re.match(rf"{keyword}[=:]", message) is None:
            raise
        raise type(error)(option + message.removeprefix(keyword)) from error


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ``", did you mean …?"`` with the most similar of ``names``; empty if none is similar to ``word``."""
    plain = {name.lstrip("-").replace("_", "-"): name for name in names}
    matches = get_close_matches(word.lstrip("-").replace("_", "-").lower(), plain, n=1, cutoff=0.7)
    return f", did you mean {plain[matches[0]]!r}?" if matches else ""


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return ``names`` with commas between them: the first ``most``, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 text``, ``2 texts``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def is_whole(text: str) -> bool:
    """Return true if ``text`` is a number that ``int`` reads.

    ``str.isdigit`` also accepts "²", and any number of digits.
    """
    return re.fullmatch(r"[0-9]{1,18}", text) is not None


def check_count(name: str, value: object) -> int:
    """Return ``value`` if it is a whole number of at least 1.

    Raises:
        InputError: ``value`` is another number or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name}={value!r}: must be a whole number, at least 1")
    if value < 1:
        raise InputError(f"{name}={value}: must be at least 1")
    return value


def is_finite(value: SupportsFloat) -> bool:
    """Return true if ``value`` is finite as a float.

    A whole number beyond the largest float is not finite; ``math.isfinite`` fails for it.
    """
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
