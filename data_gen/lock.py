"""One process at a time in a folder: it holds the lock of the file ``.lock`` there, which stays behind unlocked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..controllers.errors import InputError

LOCK = ".lock"


def lock_folder(folder: Path, doing: str) -> FileLock:
    """Take the lock of ``folder``, which is made if need be, until ``release``; a killed process lets go by itself.

    Args:
        doing: what the holder does there, for the message: ``"is training in it"``.

    Raises:
        InputError: another process holds it, or ``folder`` is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise InputError(f"{folder}: another process {doing}; wait for it, or stop it") from None
    return lock


@contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """Hold the lock of ``folder`` meanwhile; arguments and errors as of :func:`lock_folder`."""
    lock = lock_folder(folder, doing)
    try:
        yield
    finally:
        lock.release()
