"""The campaign: every fault for every stage, one case each. Its cases are kept, so that it goes on where it stopped."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from ...infer.machine import commit
from ...options import FaultsOptions
from ..store import Store
from ..table import Table
from . import serving
from .cases import Bench, Outcome
from .damage import clock_set_back, damaged_files, damaged_shards, one_bit, truncated, two_processes
from .disks import full, no_files, read_only
from .ends import interrupt, kill_9, terminate
from .processes import Main
from .requests import through_a_decoder, through_a_server
from .serving import Served, undisturbed_server
from .stages import Stage, Undisturbed, make_stages, undisturbed

SIGNALS = 10  # of SIGTERM and of SIGINT, for each stage
POINTS = 15  # file operations at which the disk is full
FEW = 5  # attempts of the other faults
SERVE = "serve"


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        run: does it; is given an empty folder.
    """

    stage: str
    fault: str
    run: Callable[[Path], Outcome]


class Ground:
    """The folder in which the stages run; a stage's undisturbed run is made when its first case needs it."""

    def __init__(self, main: Main, stage: Stage, folder: Path, seed: int) -> None:
        self.main, self.stage, self.folder, self.seed = main, stage, folder / stage.name.replace(" ", "-"), seed

    @cached_property
    def whole(self) -> Undisturbed:
        return undisturbed(self.main, self.stage, self.folder)

    def run(self, do: Callable[[Bench], Outcome], folder: Path) -> Outcome:
        """Run a case. Its folder lies beside the undisturbed run's."""
        whole = self.whole
        place = self.folder / folder.name
        place.mkdir()
        return do(Bench(self.main, self.stage, whole, place, self.seed))


def run_campaign(options: FaultsOptions, main: Main, console: Console) -> dict[str, Any]:
    """Run the cases that are not in the store.

    Args:
        main: runs the words of a command and returns its exit code.

    Raises:
        InputError: a stage fails without any fault, or another process uses the folder.
    """
    table = []
    with Store(options.folder) as store, tempfile.TemporaryDirectory(prefix="faults-") as work:
        for number, case in enumerate(all_cases(options, main, Path(work), console)):
            identity = {
                "stage": case.stage, "fault": case.fault, "commit": commit(), "seed": options.seed,
                "kills": options.kills, "requests": options.requests,
            }  # fmt: skip
            found = store.compute(identity, partial(_row, case, Path(work, f"case-{number}")))
            console.print(f"{case.stage}, {case.fault}: {'held' if found['held'] else found['problems'][0]}")
            table.append(found)
    return {"cases": len(table), "held": sum(row["held"] for row in table), "table": table}


def _row(case: Case, folder: Path) -> dict[str, Any]:
    started = time.perf_counter()
    folder.mkdir()
    outcome = case.run(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "stage": case.stage, "fault": case.fault, "held": not outcome.problems, **asdict(outcome),
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def all_cases(options: FaultsOptions, main: Main, work: Path, console: Console) -> Iterator[Case]:
    """The cases of the stages that ``options`` names, in order."""
    for stage in make_stages(main, work / "given"):
        if options.stages is None or stage.name in options.stages:
            yield from stage_cases(Ground(main, stage, work, options.seed), options.kills)
    if options.stages is None or SERVE in options.stages:
        yield from server_cases(options, main, work)
        yield Case(
            "decoder", f"{options.requests} mixed requests", lambda _: through_a_decoder(options.requests, console)
        )
        yield Case(SERVE, f"{options.requests} mixed requests", lambda _: through_a_server(options.requests, console))


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


def server_cases(options: FaultsOptions, main: Main, work: Path) -> Iterator[Case]:
    """Every fault of a server that logs its rounds."""
    known: list[Served] = []

    def whole() -> Served:
        if not known:
            (work / "served").mkdir()
            known.append(undisturbed_server(main, work / "served"))
        return known[0]

    def case(fault: str, do: Callable[[Path], Outcome]) -> Case:
        return Case(SERVE, fault, do)

    def random(fault: str) -> Random:
        return Random(f"{options.seed} {SERVE} {fault}")

    yield case("SIGKILL", lambda root: serving.killed(main, whole(), root, random("SIGKILL"), options.kills))
    for number in (signal.SIGTERM, signal.SIGINT):
        yield case(
            number.name,
            lambda root, number=number: serving.ended_by(number, main, whole(), root, random(number.name), SIGNALS),  # type: ignore[misc]
        )
    yield case("disk full", lambda root: serving.full_disk(main, whole(), root))
    yield case("two processes in one folder", lambda root: serving.two_servers(main, root))


def as_table(result: dict[str, Any]) -> Table:
    """A row for each case."""
    rows = [
        {
            "stage": row["stage"],
            "fault": row["fault"],
            "times": str(row["attempts"]),
            "held": "yes" if row["held"] else row["problems"][0],
        }
        for row in result["table"]
    ]
    return Table(f"{result['held']} of {result['cases']} cases held", rows)
