"""One process at a time in a folder: it holds the lock of the file ``.lock`` there, and removes it when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..controllers.errors import InputError

LOCK = ".lock"


class FolderLock:
    """The lock of ``folder``, which is made if need be, until ``release``; a killed process lets go by itself.

    Args:
        doing: what the holder does there, for the message: ``"is training in it"``.

    Raises:
        InputError: another process holds it, or ``folder`` is a file.
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
        """Let others in; a folder that was made for the lock and is still empty goes."""
        (self.folder / LOCK).unlink(missing_ok=True)  # while it is held: filelock takes no lock of a file that is gone
        self._lock.release()
        if self._made:
            with suppress(OSError):
                self.folder.rmdir()


@contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """Hold the lock of ``folder`` meanwhile; arguments and errors as of :class:`FolderLock`."""
    lock = FolderLock(folder, doing)
    try:
        yield
    finally:
        lock.release()
