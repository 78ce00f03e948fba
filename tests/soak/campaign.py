"""The campaign: every fault for every stage, one case each. Its cases are kept, so that it goes on where it stopped.

Stages run side by side, each in a process of its own. These processes end with the campaign, however it ends, and their
mounts end with them; the next campaign removes the files that are left.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.common.machine import commit
from specpilot.common.quiet import quiet
from specpilot.compare.store import Store
from specpilot.compare.table import Table

from experiments.options import FaultsOptions

from .cases import Case, Outcome
from .disks import own_mounts
from .processes import Main, end_with_parent
from .requests import through_a_decoder, through_a_server
from .server_cases import SERVE, server_cases
from .stage_cases import Ground, stage_cases
from .stages import make_given, make_stages

SHOWN = 60  # characters of a problem in the table
DECODER, SERVER = "one decoder", "one server"


@dataclass(frozen=True)
class Campaign:
    """What a process needs to run the cases of one stage.

    Attributes:
        main: runs the words of a command and returns its exit code.
        work: folder for everything but the records.
        commit: of the code, by which records are kept.
    """

    options: FaultsOptions
    main: Main
    work: Path
    commit: str | None

    def cases(self, name: str) -> Iterable[Case]:
        """The cases of a stage, in order."""
        options, folder = self.options, self.work / name.replace(" ", "-")
        folder.mkdir()
        mixed = f"{options.requests} mixed requests"
        match name:
            case "serve":
                return server_cases(self.main, folder, options.kills, options.seed)
            case "one decoder":
                return [Case(DECODER, mixed, lambda _: through_a_decoder(options.requests, options.seed))]
            case "one server":
                return [Case(SERVER, mixed, lambda _: through_a_server(options.requests))]
        stages = {stage.name: stage for stage in make_stages(self.work / "given")}
        return stage_cases(Ground(self.main, stages[name], folder, options.seed), options.kills)

    def run(self, name: str) -> list[dict[str, Any]]:
        """The rows of a stage's cases; those that have no record are run."""
        rows = []
        changed = str(self.commit).endswith("+changes")  # the record of a case would not tell the code
        console, store = Console(stderr=True), Store(self.options.folder)
        for number, case in enumerate(self.cases(name)):
            identity = {
                "stage": case.stage, "fault": case.fault, "commit": self.commit, "seed": self.options.seed,
                "kills": self.options.kills,
            }  # fmt: skip
            make = partial(self._row, case, self.work / f"{name.replace(' ', '-')}-{number}")
            row = make() if changed else store.compute(identity, make)
            end = "held" if row["held"] else row["problems"][0][:SHOWN]
            console.print(f"{case.stage}, {case.fault}: {end} ({row['seconds']:.0f} s)", soft_wrap=True)
            rows.append(row)
        return rows

    def _row(self, case: Case, folder: Path) -> dict[str, Any]:
        started = time.perf_counter()
        folder.mkdir()
        outcome: Outcome = case.run(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return {
            "stage": case.stage, "fault": case.fault, "held": not outcome.problems, **asdict(outcome),
            "seconds": round(time.perf_counter() - started, 1), "commit": self.commit,
        }  # fmt: skip


def run_campaign(options: FaultsOptions, main: Main) -> dict[str, Any]:
    """Run the cases that are not in the store, as many stages side by side as ``options`` allow.

    Raises:
        InputError: a stage is unknown or fails without any fault, or another process uses the folder.
    """
    work = options.folder.absolute() / "work"
    known = [SERVE, *(stage.name for stage in make_stages(work)), SERVER, DECODER]  # those that take longest first
    names = known if options.stages is None else [*options.stages]
    for name in names:
        if name not in known:
            raise InputError(f"stages={name!r}: no such stage; the stages are {', '.join(known)}")
    with Store(options.folder):
        shutil.rmtree(work, ignore_errors=True)
        if not {SERVE, SERVER, DECODER} >= set(names):
            make_given(main, work / "given")
        work.mkdir(exist_ok=True)
        campaign = Campaign(options, main, work, commit())
        pool = ProcessPoolExecutor(options.jobs or os.cpu_count(), get_context("spawn"), begin_worker, (os.getpid(),))
        try:
            table = [row for rows in pool.map(campaign.run, names) for row in rows]
        finally:
            pool.shutdown(cancel_futures=True)
        shutil.rmtree(work, ignore_errors=True)
    return {"cases": len(table), "held": sum(row["held"] for row in table), "table": table}


def begin_worker(campaign: int) -> None:
    """In a process that runs cases: it ends with the process ``campaign``, and its mounts end with it."""
    end_with_parent()
    if os.getppid() != campaign:
        os._exit(1)
    own_mounts()
    quiet()


def as_table(result: Mapping[str, Any]) -> Table:
    """A row for each case."""
    rows = [
        {
            "stage": row["stage"],
            "fault": row["fault"],
            "times": str(row["attempts"]),
            "held": "yes" if row["held"] else row["problems"][0][:SHOWN],
        }
        for row in result["table"]
    ]
    return Table(f"{result['held']} of {result['cases']} cases held", rows)
