"""Disks that are full or read-only, and processes that can open no more files.

The disk is a tmpfs of its own where one can be mounted. Elsewhere a process meets the limit on file sizes instead of a
full disk, and a folder without permission to write instead of a read-only disk, which does not stop root.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from .cases import Bench, Outcome, harm_and_resume, in_one_line
from .contents import damage, difference
from .processes import FILES, FULL, Ended, Fault
from .stages import Stage

CLONE_NEWNS = 0x00020000  # of Linux's unshare
SIZE = "32m"  # of the disk; the largest stage writes 3 MiB


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


def full(bench: Bench, most: int) -> Outcome:
    """The disk is full at the first, second, … file operation; between two attempts there is space again."""
    with disk(bench.root / "disk") as mounted:
        filler = bench.root / "disk" / "filler" if mounted else None
        step = max(1, bench.whole.touches // most)

        def harm(stage: Stage, folder: Path, number: int, random: Random) -> Ended:
            at = 1 + number * step % bench.whole.touches
            ended = stage.run(bench.main, folder, Fault(FULL, at, filler=None if filler is None else str(filler)))
            if filler is not None:
                filler.unlink(missing_ok=True)
            return ended

        # An operation may need no space, and another write may follow it that does.
        outcome = harm_and_resume(replace(bench, root=bench.root / "disk"), "full", harm, in_one_line, most)
    outcome.means = "a tmpfs" if mounted else "RLIMIT_FSIZE"
    return outcome


def no_files(bench: Bench, most: int) -> Outcome:
    """From the first, second, … file operation on no file can be opened."""
    step = max(1, bench.whole.touches // most)

    def harm(stage: Stage, folder: Path, number: int, random: Random) -> Ended:
        return stage.run(bench.main, folder, Fault(FILES, 1 + number * step % bench.whole.touches))

    return harm_and_resume(bench, "files", harm, in_one_line, most)


def read_only(bench: Bench) -> Outcome:
    """A new folder, and one with a half-finished run, on a disk that cannot be written; then it can."""
    outcome = Outcome()
    with disk(bench.root / "disk") as mounted:
        outcome.means = "a tmpfs mounted read-only" if mounted else "a folder without permission to write"
        if not mounted and os.geteuid() == 0:
            outcome.note("permissions do not stop root, and no disk can be mounted here")
            return outcome
        place = bench.root / "disk"
        half, new = place / "half", place / "new"
        bench.stage.run(bench.main, half, Fault("signal", bench.whole.touches // 2))
        left = sorted(place.rglob("*"))
        for folder in (new, half):
            with unwritable(place, mounted):
                ended = bench.stage.run(bench.main, folder)
            outcome.attempts += 1
            outcome.note_line(ended.complaint() or "", bench.root)
            if not in_one_line(ended):
                outcome.note(ended.last_words())
            if sorted(place.rglob("*")) != left:
                outcome.note("files have changed")
            outcome.note(damage(place))
        ended = bench.stage.run(bench.main, half)
        outcome.finished += ended.code == 0
        outcome.note(difference(half, bench.whole.contents) if ended.code == 0 else ended.last_words())
    return outcome


@contextmanager
def unwritable(place: Path, mounted: bool) -> Iterator[None]:
    """``place``, a disk if ``mounted``, cannot be written inside the block."""
    folders = [place, *(path for path in place.rglob("*") if path.is_dir())]
    if mounted:
        assert _mount("-o", "remount,ro", str(place)), "a disk that was mounted can be mounted otherwise"
    else:
        for folder in folders:
            folder.chmod(0o555)
    try:
        yield
    finally:
        if mounted:
            assert _mount("-o", "remount,rw", str(place)), "a disk that was mounted can be mounted otherwise"
        else:
            for folder in folders:
                folder.chmod(0o755)
