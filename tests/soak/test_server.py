"""Every fault befalls a server that logs its rounds, while clients wait for their texts."""

import signal
from pathlib import Path
from random import Random

import pytest
from specpilot.data_gen.kinds import RoundsRow, read_dataset

from ..folders import assert_whole
from ..processes import fill
from .disks import disk
from .servers import Served, Serving

pytestmark = [pytest.mark.timeout(3600), pytest.mark.xdist_group("serve")]


def test_killed(served: Served, kills: int, tmp_path: Path) -> None:
    """SIGKILL while requests are answered; the next server continues the log."""
    random, log = Random(0), tmp_path / "log"
    for _ in range(kills):
        serving = Serving(log)
        answers = serving.load(random.uniform(0, 4 * served.seconds), signal.SIGKILL)
        serving.process.send(signal.SIGKILL)
        serving.process.end()
        for answer, text in zip(answers, served.texts, strict=True):
            assert answer.text == text if answer.status == 200 else text.startswith(answer.text)
        assert_whole(log)
    served.finish(log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_by_a_signal(served: Served, number: int, kills: int, tmp_path: Path) -> None:
    """What was accepted is answered, then the server ends with exit code 0."""
    random, log = Random(number), tmp_path / "log"
    for _ in range(kills):
        serving = Serving(log)
        answers = serving.load(random.uniform(0, served.seconds), number)
        serving.stop()
        for answer, text in zip(answers, served.texts, strict=True):
            assert (answer.status, answer.text) in ((0, ""), (503, ""), (200, text))
        assert_whole(log)
    served.finish(log)


def test_a_full_disk(served: Served, tmp_path: Path) -> None:
    """The log's disk is full for two loads: texts go on, one line says so, and the log goes on when there is space."""
    with disk(tmp_path / "disk") as mounted:
        if not mounted:
            pytest.skip("no disk can be mounted here")
        log, filler = tmp_path / "disk" / "log", tmp_path / "disk" / "filler"
        serving = Serving(log)
        fill(filler)
        for _ in range(2):
            served.check(serving.load())
        assert_whole(log)
        assert serving.process.text.count("specpilot: error: ") == 1
        filler.unlink()
        served.check(serving.load())
        serving.stop()
        served.finish(log)
        assert len(read_dataset(log, RoundsRow)) >= 2 * served.logged
