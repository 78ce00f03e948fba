"""Disks that are full: a tmpfs of its own, where one can be mounted."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def _mount(*words: str) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *words], check=False, capture_output=True).returncode == 0
