"""Every fault of a stage of the pipeline, one case each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path

from .cases import Bench, Case, Outcome
from .damage import clock_set_back, damaged_files, damaged_shards, one_bit, truncated, two_processes
from .disks import full, no_files, read_only
from .ends import interrupt, kill_9, terminate
from .processes import Main
from .stages import Stage, Undisturbed, undisturbed

SIGNALS = 10  # of SIGTERM and of SIGINT
POINTS = 15  # file operations at which the disk is full
FEW = 5  # attempts of the other faults


class Ground:
    """The folder in which a stage runs; its undisturbed run is made when the first case needs it."""

    def __init__(self, main: Main, stage: Stage, folder: Path, seed: int) -> None:
        self.main, self.stage, self.folder, self.seed = main, stage, folder, seed

    @cached_property
    def whole(self) -> Undisturbed:
        return undisturbed(self.main, self.stage, self.folder)

    def run(self, do: Callable[[Bench], Outcome], folder: Path) -> Outcome:
        """Run a case. Its folder lies beside the undisturbed run's."""
        whole = self.whole
        place = self.folder / folder.name
        place.mkdir()
        return do(Bench(self.main, self.stage, whole, place, self.seed))


def stage_cases(ground: Ground, kills: int) -> Iterator[Case]:
    """Every fault of one stage."""
    faults: dict[str, Callable[[Bench], Outcome]] = {
        "SIGKILL": partial(kill_9, times=kills),
        "SIGTERM": partial(terminate, times=SIGNALS),
        "SIGINT": partial(interrupt, times=SIGNALS),
        "disk full": partial(full, most=POINTS),
        "no more files can be opened": partial(no_files, most=FEW),
        "read-only disk": read_only,
        "two processes in one folder": partial(two_processes, times=FEW),
        "clock set back": partial(clock_set_back, times=FEW),
    }
    for name, damage in {"truncated": truncated, "with one bit turned": one_bit}.items():
        if ground.stage.consumer:
            faults[f"shards {name}"] = partial(damaged_shards, damage=damage)
        else:
            faults[f"{ground.stage.kept} {name}"] = partial(damaged_files, damage=damage)
    for fault, do in faults.items():
        yield Case(ground.stage.name, fault, partial(ground.run, do))
