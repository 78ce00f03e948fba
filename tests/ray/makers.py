"""Shard makers that note what they do in a folder, and fail there as they are told."""

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from specpilot.common.errors import InputError
from specpilot.data_gen.workers import OnDone, ignore


def begun(folder: Path) -> list[int]:
    """The shards that workers began to make, in order."""
    return [int(line) for line in (folder / "begun").read_text().split()]


class Maker:
    """Squares a number; ``accident`` may go wrong before.

    Args:
        accident: called with the folder and the number.
    """

    def __init__(self, folder: Path, accident: Callable[[Path, int], None] | None = None) -> None:
        self.folder, self.accident = folder, accident

    def describe(self) -> dict[str, Any]:
        return {"identity": {"kind": "square"}}

    def make(self, unit: int, on_done: OnDone = ignore) -> int:
        with open(self.folder / "begun", "a") as file:
            file.write(f"{unit}\n")
        if self.accident is not None:
            self.accident(self.folder, unit)
        on_done(unit)
        return unit * unit


class Different(Maker):
    """A maker that describes itself differently in every process, and makes nothing until there are two."""

    def describe(self) -> dict[str, Any]:
        (self.folder / f"described-{os.getpid()}").touch()
        return {"identity": {"kind": "square", "weights": os.getpid()}}

    def make(self, unit: int, on_done: OnDone = ignore) -> int:
        while len([*self.folder.glob("described-*")]) < 2:
            time.sleep(0.05)  # the other worker needs the processor to start
        return unit


def first_time(folder: Path, unit: int) -> bool:
    """Whether it is the first time that shard 2 is made."""
    return unit == 2 and begun(folder).count(2) == 1


def killed_once(folder: Path, unit: int) -> None:
    if first_time(folder, unit):
        os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, unit: int) -> None:
    if unit == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def short_of_memory_once(folder: Path, unit: int) -> None:
    """Allocate more than the process may have."""
    if first_time(folder, unit):
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + (64 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
        torch.zeros(1 << 30)


def refused(folder: Path, unit: int) -> None:
    if unit == 2:
        raise InputError("unit=2: is refused; give another")
