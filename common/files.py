"""Files that appear whole or not at all, their hashes, and folders that one process at a time writes to."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from .errors import UNLOCKABLE, InputError, disk_error

LOCK = ".lock"
RUN = "run.yaml"  # in the folder of a training run
MANIFEST = "manifest.json"  # in the folder of a dataset
POINTER = b"version https://git-lfs.github.com/spec/"  # the beginning of a git LFS pointer

T = TypeVar("T")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to ``path`` if the block succeeds, and removed if it fails."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with named_errors(path):
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Name ``path`` in an error of the operating system that names no file, for example that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def check_free(folder: Path, overwrite: bool) -> None:
    """Raise InputError if ``folder`` may not be replaced; called before the work and before writing."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; give a folder")
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise InputError(f"{folder}: exists and is not empty; choose another folder or pass --overwrite")


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder that takes the place of ``folder`` if the block succeeds.

    Raises:
        InputError: ``folder`` holds something that the new one does not, or the disk cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as workspace:
            new = Path(workspace, "new")
            new.mkdir()
            yield new
            if folder.exists():
                lost = {path.name for path in folder.iterdir()} - {path.name for path in new.iterdir()}
                if lost:
                    raise InputError(f"{folder}: holds {min(lost)!r}, which would be lost; choose another folder")
                folder.rename(Path(workspace, "old"))
            new.rename(folder)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); choose another place or free space"
        ) from error


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_no_pointer(file: Path) -> None:
    """Raise InputError if ``file`` is a git LFS pointer, three lines that a clone has in place of a large file.

    A file that does not exist, or cannot be read, is left to its reader.
    """
    start = b""
    with suppress(OSError), file.open("rb") as opened:
        start = opened.read(len(POINTER))
    if start == POINTER:
        folder = shlex.quote(str(file.parent))
        raise InputError(f"{file}: a git LFS pointer, not the file itself; fetch the file: cd {folder} && git lfs pull")


def lacking(folder: Path, name: str) -> str:
    """Why ``folder / name`` is not there, as a part of a sentence."""
    if folder.is_dir():
        return f"it holds no {name}"
    return "it is a file; a folder is expected" if folder.exists() else "there is no such folder"


def check_no_run(folder: Path) -> None:
    """Raise InputError if ``folder``, given as a model or a controller, is that of a training run or a dataset."""
    if (folder / RUN).is_file():
        raise InputError(
            f"{folder}: is the folder of a training run; export it with specpilot export {shlex.quote(str(folder))} "
            "DIR, and give DIR"
        )
    if (folder / MANIFEST).is_file():
        raise InputError(f"{folder}: is a dataset; give what was trained on it and exported")


class FolderLock:
    """Locks ``folder``, which is created if necessary, until ``release``, the end of the block or of the process.

    Args:
        doing: the holder's activity, for the error message: ``"is training in it"``.

    Raises:
        InputError: another process holds the lock, ``folder`` is a file, or its file system has no locks.
    """

    def __init__(self, folder: Path, doing: str) -> None:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; give a folder")
        from filelock import FileLock, Timeout  # here: --help does without it

        self.folder, self._made = folder, not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise InputError(f"{folder}: another process {doing}; wait for it, or stop it") from None
        except OSError as error:
            if error.errno not in UNLOCKABLE:
                raise
            if self._made:
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()
            error.filename = str(folder)
            raise InputError(disk_error(error)) from error

    def release(self) -> None:
        """Release the lock, and remove the folder if it was created for the lock and is empty."""
        (self.folder / LOCK).unlink(missing_ok=True)  # before the release: no other process may lock a deleted file
        self._lock.release()
        if self._made:
            with suppress(OSError):
                self.folder.rmdir()

    def __enter__(self) -> None:
        """Locked since it was made."""

    def __exit__(self, *_: object) -> None:
        self.release()


def without_places(value: T) -> T:
    """``value``, a configuration or a part of one, with the last part of every absolute path instead of the path."""
    new: Any = value
    if isinstance(value, str) and Path(value).expanduser().is_absolute():
        new = Path(value).name
    elif isinstance(value, list | tuple):
        new = type(value)(map(without_places, value))
    elif isinstance(value, dict):
        new = {key: without_places(one) for key, one in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        new = replace(
            value, **{one.name: without_places(getattr(value, one.name)) for one in fields(value) if one.init}
        )
    return new  # type: ignore[no-any-return]


def split_revision(name: str, revision: str | None = None) -> tuple[str, str | None]:
    """The id on the Hugging Face hub, and the branch, tag or commit, that ``owner/name@revision`` names.

    The name of a file or folder that exists is returned as it is.

    Args:
        revision: the one that another option names; None if there is none.

    Raises:
        InputError: the revision is empty, or there are two.
    """
    hub_id, at, named = (name, "", "") if Path(name).expanduser().exists() else name.partition("@")
    if at and not named:
        raise InputError(f"{name}: names no revision after '@'; give a branch, tag or commit, or leave '@' out")
    if at and revision is not None:
        raise InputError(f"{name}: names a revision, and revision={revision!r} another one; give one of them")
    return hub_id, named or revision
