"""Datasets whose shards are damaged afterwards, folders that two processes want, and clocks that are set back."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from random import Random

from .cases import Bench, Outcome, harm_and_resume, in_one_line
from .contents import difference
from .processes import CLOCK, SIGNAL, Ended, Fault
from .stages import Stage, consume

Damage = Callable[[bytes, Random], bytes]
MOST = 8  # files that are damaged one after the other
TIMES = (0, 2**31 - 1, 1_000_000_000)  # times of change: 1970, 2038, 2001


def truncated(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


def one_bit(content: bytes, random: Random) -> bytes:
    place = random.randrange(8 * len(content))
    turned = bytearray(content)
    turned[place // 8] ^= 1 << place % 8
    return bytes(turned)


def damaged_shards(bench: Bench, damage: Damage) -> Outcome:
    """Every shard in turn: the command that reads the dataset names it, the one that made it makes it again."""
    outcome, random = Outcome(), bench.random(damage.__name__)
    whole, folder = bench.root.parent / "whole", bench.root / "dataset"
    for shard in sorted(path.name for path in whole.glob("shard-*")):
        shutil.copytree(whole, folder)
        (folder / shard).write_bytes(damage((folder / shard).read_bytes(), random))
        ended = consume(bench.main, bench.stage, folder, bench.root / "consumed")
        outcome.attempts += 1
        if not (in_one_line(ended) and shard in str(ended.complaint())):
            outcome.note(f"{shard}: {ended.last_words()}")
        outcome.note_line((ended.complaint() or "").replace(shard, "shard-…"), bench.root)
        ended = bench.stage.run(bench.main, folder)
        outcome.finished += ended.code == 0
        outcome.note(difference(folder, bench.whole.contents) if ended.code == 0 else ended.last_words())
        for used in (folder, bench.root / "consumed"):
            shutil.rmtree(used, ignore_errors=True)
    return outcome


def two_processes(bench: Bench, times: int) -> Outcome:
    """The first is stopped at different moments and goes on when the second has been refused."""
    outcome = Outcome()
    for number, folder in zip(range(times), bench.folders(), strict=False):
        at = 4 + number * (bench.whole.touches - 4) // times  # the first three make the folder and its lock
        first = bench.stage.start(bench.main, folder, Fault(SIGNAL, at, signal.SIGSTOP))
        stopped = _stopped(first.pid, first.running)
        second = bench.stage.run(bench.main, folder)
        outcome.attempts += 1
        outcome.note_line(second.complaint() or "", bench.root)
        if stopped and not (in_one_line(second) and "another process" in str(second.complaint())):
            outcome.note(f"stopped at {at}: {second.last_words()}")
        first.send(signal.SIGCONT)
        ended = first.end()
        outcome.finished += ended.code == 0
        outcome.note(difference(folder, bench.whole.contents) if ended.code == 0 else ended.last_words())
    return outcome


def _stopped(pid: int, running: Callable[[], bool]) -> bool:
    """Wait until a process is stopped; False if it ends before."""
    while running():
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            if file.read().rpartition(")")[2].split()[0] == "T":
                return True
    return False


def clock_set_back(bench: Bench, times: int) -> Outcome:
    """Every reading of the clock is a day before the last, and files change their times between kills."""

    def harm(stage: Stage, folder: Path, number: int, random: Random) -> Ended:
        process = stage.start(bench.main, folder, Fault(CLOCK))
        ended = process.wait(random.uniform(0.02, bench.whole.seconds))
        if ended is None:
            process.send(signal.SIGKILL)
            ended = process.end()
        change_times(folder)
        return ended

    return harm_and_resume(bench, "clock", harm, lambda ended: ended.code == -signal.SIGKILL, times)


def change_times(folder: Path) -> None:
    """Give the files in ``folder`` times of change that are decades apart."""
    for path, moment in zip(sorted(folder.rglob("*")), cycle(TIMES), strict=False):
        if path.is_file():
            os.utime(path, (moment, moment))


def damaged_files(bench: Bench, damage: Damage) -> Outcome:
    """Files of a run without its result, one after the other: the next run names it, or comes to the right end.

    Without the file that was named (of a training: without all checkpoints), as the message says, it also does.
    """
    outcome, random = Outcome(), bench.random(damage.__name__)
    half, folder = bench.root / "half", bench.root / "run"
    bench.stage.run(bench.main, half)
    (half / "result.json").unlink()
    for path in sorted((half / bench.stage.kept).glob("*"))[:MOST]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(half, folder)
        file = folder / path.relative_to(half)
        file.write_bytes(damage(file.read_bytes(), random))
        ended = bench.stage.run(bench.main, folder)
        outcome.attempts += 1
        if ended.code:
            outcome.note_line((ended.complaint() or "").replace(file.name, "…"), bench.root)
            if not (in_one_line(ended) and file.name in str(ended.complaint())):
                outcome.note(f"{file.name}: {ended.last_words()}")
            shutil.rmtree(file.parent) if "its folder" in str(ended.complaint()) else file.unlink()
            ended = bench.stage.run(bench.main, folder)
        outcome.finished += ended.code == 0
        outcome.note(difference(folder, bench.whole.contents) if ended.code == 0 else ended.last_words())
    if not outcome.attempts:
        outcome.note(f"there is no file in {bench.stage.kept}")
    return outcome
