"""A case of the campaign: what is done to a stage, and what came of it; and the loop that all cases of ends share."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .contents import damage, difference
from .processes import Ended, Main
from .stages import Stage, Undisturbed

Harm = Callable[[Stage, Path, int, Random], Ended]  # (stage, folder, number of the attempt, random) → its end
Fits = Callable[[Ended], bool]


@dataclass
class Outcome:
    """What came of a case.

    Attributes:
        attempts: how often the fault was applied.
        finished: how often the stage came to its end in spite of it, with the contents of an undisturbed run.
        problems: what should not have happened.
        lines: different errors that were reported, as an example of each.
        means: what the fault was made with, where that depends on the machine.
    """

    attempts: int = 0
    finished: int = 0
    problems: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    means: str | None = None

    def note(self, problem: str | None) -> None:
        if problem is not None:
            self.problems.append(problem)

    def note_line(self, line: str, folder: Path) -> None:
        shown = line.replace(str(folder), "…").replace(sys.prefix, "…")
        if shown not in self.lines:
            self.lines.append(shown)

    def note_growth(self, growth: float, most: float) -> None:
        """Resident memory may grow by a share of ``most``."""
        self.means = f"resident memory grows by {growth:.1%}"
        if not growth <= most:
            self.note(f"{self.means}, more than {most:.0%}")


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        run: does it; is given an empty folder.
    """

    stage: str
    fault: str
    run: Callable[[Path], Outcome]


@dataclass(frozen=True)
class Bench:
    """What every case is given.

    Attributes:
        root: an empty folder for the case.
        seed: of its random moments.
    """

    main: Main
    stage: Stage
    whole: Undisturbed
    root: Path
    seed: int

    def random(self, what: str) -> Random:
        return Random(f"{self.seed} {self.stage.name} {what}")

    def folders(self) -> Iterator[Path]:
        """New folders, of which the last one is kept."""
        number = 0
        while True:
            yield self.root / f"run-{number}"
            shutil.rmtree(self.root / f"run-{number}", ignore_errors=True)
            number += 1


def harm_and_resume(bench: Bench, what: str, harm: Harm, fits: Fits, attempts: int) -> Outcome:
    """Harm a stage so many times; each attempt continues what the last one left, until the stage is finished.

    After each attempt no file may be half-written, and an attempt that was harmed must end as ``fits`` says. A finished
    folder must have the contents of an undisturbed run; then another is begun.
    """
    outcome, random = Outcome(), bench.random(what)
    folders = bench.folders()
    folder = next(folders)
    for number in range(3 * attempts):
        if outcome.attempts == attempts:
            break
        ended = harm(bench.stage, folder, number, random)
        outcome.note(damage(folder))
        if ended.code == 0:
            outcome.finished += 1
            outcome.note(difference(folder, bench.whole.contents))
            folder = next(folders)
        else:
            outcome.attempts += 1
            if line := ended.complaint():
                outcome.note_line(line, bench.root)
            if not fits(ended):
                outcome.note(ended.last_words())
    ended = bench.stage.run(bench.main, folder)
    if ended.code:
        outcome.note(f"not finished afterwards; {ended.last_words()}")
    else:
        outcome.finished += 1
        outcome.note(difference(folder, bench.whole.contents))
    return outcome


def in_one_line(ended: Ended) -> bool:
    """Whether a command was refused as it should be."""
    return ended.code == 2 and ended.complaint() is not None
