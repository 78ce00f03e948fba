"""Atomic writing of files and folders, hashes of files, and locks of folders."""

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
    """Check that ``folder`` may be written; called before the work and before writing.

    Args:
        folder: the folder.
        overwrite: whether the contents of an existing folder may be replaced.

    Raises:
        InputError: ``folder`` is a file; or it is not empty and ``overwrite`` is false.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose a folder")
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise InputError(f"{folder}: exists and is not empty; choose another folder or pass --overwrite")


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder that replaces ``folder`` if the block succeeds.

    Raises:
        InputError: ``folder`` contains a file that the new folder does not have, or the disk cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as workspace:
            new = Path(workspace, "new")
            new.mkdir()
            yield new
            if folder.exists():
                lost_files = {path.name for path in folder.iterdir()} - {path.name for path in new.iterdir()}
                if lost_files:
                    raise InputError(
                        f"{folder}: contains {min(lost_files)!r}, which would be lost; choose another folder"
                    )
                folder.rename(Path(workspace, "old"))
            new.rename(folder)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); choose another place or free space"
        ) from error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_no_pointer(file: Path) -> None:
    """Raise InputError if ``file`` is a git LFS pointer: three lines in place of a large file.

    Files that do not exist or cannot be read raise nothing; their reader reports them.
    """
    start = b""
    with suppress(OSError), file.open("rb") as opened:
        start = opened.read(len(POINTER))
    if start == POINTER:
        folder = shlex.quote(str(file.parent))
        raise InputError(
            f"{file}: is a git LFS pointer, not the file itself; download the file: cd {folder} && git lfs pull"
        )


def lacking(folder: Path, name: str) -> str:
    """Return the reason why ``folder / name`` does not exist, as a part of a sentence."""
    if folder.is_dir():
        return f"it holds no {name}"
    return "it is a file; a folder is expected" if folder.exists() else "there is no such folder"


def check_no_run(folder: Path) -> None:
    """Check that ``folder``, which is passed as a model or controller, is neither a training run nor a dataset.

    Raises:
        InputError: ``folder`` is a training run or a dataset.
    """
    if (folder / RUN).is_file():
        raise InputError(
            f"{folder}: is the folder of a training run; export it with specpilot export {shlex.quote(str(folder))} "
            "DIR, and use DIR"
        )
    if (folder / MANIFEST).is_file():
        raise InputError(f"{folder}: is a dataset; train on it, export the run, and use the exported folder")


class FolderLock:
    """A lock of ``folder`` until ``release``, the end of the block, or the end of the process.

    Args:
        folder: the folder; created if necessary.
        activity: the activity of the lock's owner in error messages, such as ``"is training in it"``.

    Raises:
        InputError: another process holds the lock, ``folder`` is a file, or its file system has no locks.
    """

    def __init__(self, folder: Path, activity: str) -> None:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; choose a folder")
        from filelock import FileLock, Timeout  # imported here to keep --help fast

        self.folder, self._created = folder, not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise InputError(f"{folder}: another process {activity}; wait for it, or stop it") from None
        except OSError as error:
            if error.errno not in UNLOCKABLE:
                raise
            if self._created:
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()
            error.filename = str(folder)
            raise InputError(disk_error(error)) from error

    def release(self) -> None:
        """Release the lock, and remove the folder if it was created for the lock and is empty."""
        (self.folder / LOCK).unlink(
            missing_ok=True
        )  # before the release, so that no other process locks a deleted file
        self._lock.release()
        if self._created:
            with suppress(OSError):
                self.folder.rmdir()

    def __enter__(self) -> None:
        """Return nothing; the folder has been locked since the construction."""

    def __exit__(self, *_: object) -> None:
        self.release()


def shorten_paths(value: T) -> T:
    """Return ``value``, a configuration or a part of one, with the last part of every absolute path in its place."""
    new: Any = value
    if isinstance(value, str) and Path(value).expanduser().is_absolute():
        new = Path(value).name
    elif isinstance(value, list | tuple):
        new = type(value)(map(shorten_paths, value))
    elif isinstance(value, dict):
        new = {key: shorten_paths(entry) for key, entry in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        new = replace(
            value, **{entry.name: shorten_paths(getattr(value, entry.name)) for entry in fields(value) if entry.init}
        )
    return new  # type: ignore[no-any-return]


def split_revision(name: str, revision: str | None = None) -> tuple[str, str | None]:
    """Split ``owner/name@revision`` into the id on the Hugging Face hub and the branch, tag or commit.

    The name of an existing file or folder is returned unchanged.

    Args:
        name: the name, with or without a revision.
        revision: the revision that another option names; None without one.

    Raises:
        InputError: the revision in ``name`` is empty, or there are two revisions.
    """
    hub_id, at, named = (name, "", "") if Path(name).expanduser().exists() else name.partition("@")
    if at and not named:
        raise InputError(f"{name}: names no revision after '@'; add a branch, tag or commit, or leave '@' out")
    if at and revision is not None:
        raise InputError(
            f"{name}: names a revision, and revision={revision!r} names another one; pass only one of them"
        )
    return hub_id, named or revision
