"""Disks that are full or read-only: a tmpfs of its own, where one can be mounted."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CLONE_NEWNS = 0x00020000  # of Linux's unshare
SIZE = "128m"  # of the disk; the largest stages, trainings of a draft, write more than 32 MiB


def own_mounts() -> None:
    """Mounts of this process, where it may mount, are seen by its children only and end with the last of them."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0:
        _mount("--make-rprivate", "/")


@contextmanager
def disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk at ``folder``, a new folder; yields whether that is allowed here."""
    folder.mkdir()
    mounted = _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder))
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def unwritable(place: Path, mounted: bool) -> Iterator[None]:
    """``place`` cannot be written inside the block: a disk if ``mounted``, otherwise a folder without permission.

    Skips the test where permissions do not stop this user.
    """
    folders = [place, *(path for path in place.rglob("*") if path.is_dir())]
    if mounted:
        assert _mount("-o", "remount,ro", str(place))
    elif os.geteuid() == 0:
        pytest.skip("permissions do not stop root, and no disk can be mounted here")
    else:
        _permit(folders, 0o555)
    try:
        yield
    finally:
        if mounted:
            assert _mount("-o", "remount,rw", str(place))
        else:
            _permit(folders, 0o755)


def _permit(folders: list[Path], mode: int) -> None:
    for folder in folders:
        folder.chmod(mode)


def _mount(*words: str) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *words], check=False, capture_output=True).returncode == 0
