"""A lock for a folder, held on its file ``.lock``, so that only one process at a time writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import InputError

LOCK = ".lock"


class FolderLock:
    """Locks ``folder``, which is created if necessary, until ``release`` or the end of the process.

    Args:
        doing: the holder's activity, for the error message: ``"is training in it"``.

    Raises:
        InputError: another process holds the lock, or ``folder`` is a file.
    """

    def __init__(self, folder: Path, doing: str) -> None:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; give a folder")
        self.folder, self._made = folder, not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise InputError(f"{folder}: another process {doing}; wait for it, or stop it") from None

    def release(self) -> None:
        """Release the lock, and remove the folder if it was created for the lock and is empty."""
        (self.folder / LOCK).unlink(missing_ok=True)  # before the release: no other process may lock a deleted file
        self._lock.release()
        if self._made:
            with suppress(OSError):
                self.folder.rmdir()


@contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """Context manager of :class:`FolderLock`, with the same arguments and errors."""
    lock = FolderLock(folder, doing)
    try:
        yield
    finally:
        lock.release()
