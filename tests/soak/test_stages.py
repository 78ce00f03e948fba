"""All faults are tried with all stages: files stay complete, and a repeated command ends with the same files."""

import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest

from ..helpers.folders import assert_whole, contents
from ..helpers.processes import FILES, FULL, SIGNAL, Ended, Fault
from ..helpers.stages import STAGES, Stages, disk

InjectFault = Callable[[Path, int, Random], Ended]  # (folder, number of the attempt, random) → its end
pytestmark = pytest.mark.timeout(3600)


def on_each(names: list[str]) -> pytest.MarkDecorator:
    """Parametrise a test by stages. All tests of a stage run in one process, which makes its undisturbed run once."""
    return pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names])


def inject_faults_and_resume(
    stages: Stages, name: str, place: Path, inject_fault: InjectFault, fits: Callable[[Ended], bool], times: int
) -> None:
    """Harm a stage so many times; each attempt continues what the last one left, until the stage is finished.

    After each attempt no file may be half-written, and an attempt that was harmed must end as ``fits`` says. A finished
    folder must have the contents of an undisturbed run; then another is begun.
    """
    random, folders = Random(name), (place / f"run-{number}" for number in count())
    folder, faults = next(folders), 0
    for number in range(3 * times):
        ended = inject_fault(folder, number, random)
        assert_whole(folder)
        if ended.code == 0:
            assert contents(folder) == stages.undisturbed(name).contents
            folder = next(folders)
        else:
            assert fits(ended), ended
            faults += 1
        if faults == times:
            break
    assert faults
    stages.finish(name, folder)


def in_one_line(ended: Ended) -> bool:
    """Return true if a command was refused with one line and exit code 2."""
    return ended.code == 2 and ended.complaint != ""


ENDS: dict[int, Callable[[Ended], bool]] = {
    signal.SIGKILL: lambda ended: ended.code == -signal.SIGKILL,
    # Without a word; the shell shows 143 either way.
    signal.SIGTERM: lambda ended: ended.code in (-signal.SIGTERM, 128 + signal.SIGTERM) and not ended.complaint,
    signal.SIGINT: lambda ended: ended.code == 130 and ended.complaint.partition(";")[0] == "interrupted",
}


@on_each([*STAGES])
@pytest.mark.parametrize("number", ENDS)
def test_ended_by_a_signal(stages: Stages, name: str, number: int, kills: int, tmp_path: Path) -> None:
    """Half of the signals come at a random time, half at a random file operation."""
    undisturbed = stages.undisturbed(name)

    def inject_fault(folder: Path, attempt: int, random: Random) -> Ended:
        if attempt % 2 == 0:
            return stages.run(name, folder, Fault(SIGNAL, random.randint(1, undisturbed.touches), number))
        process = stages.start(name, folder)
        ended = process.wait(random.uniform(0.02, undisturbed.seconds))
        process.send(number)
        return ended or process.end()

    inject_faults_and_resume(stages, name, tmp_path, inject_fault, ENDS[number], kills)


@on_each([*STAGES])
@pytest.mark.parametrize("kind", [FULL, FILES])
def test_a_full_disk_or_no_more_files(stages: Stages, name: str, kind: str, kills: int, tmp_path: Path) -> None:
    """The faults begin at evenly spaced file operations. A fault ends before the next attempt."""
    places = [1 + number * (stages.undisturbed(name).touches - 1) // kills for number in range(kills)]
    with disk(tmp_path / "disk") as mounted:
        filler = tmp_path / "disk" / "filler" if mounted else None  # without a disk, no file may grow

        def inject_fault(folder: Path, attempt: int, random: Random) -> Ended:
            ended = stages.run(name, folder, Fault(kind, places[attempt % len(places)], filler=filler))
            if filler is not None:
                filler.unlink(missing_ok=True)
            return ended

        inject_faults_and_resume(stages, name, tmp_path / "disk", inject_fault, in_one_line, kills)
