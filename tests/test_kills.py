"""Every stage is killed again and again; its files stay whole, and it leaves what a run leaves that nobody kills."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .folders import assert_whole
from .processes import KILLS, SIGNAL, Fault
from .soak.stages import STAGES, Stages


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(tmp_path_factory.mktemp("stages"))


SLOW = (
    "train lag-free",
    "train features",
    "train draft, stored states",
    "data answers",
)  # whose code is mostly that of another stage


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in STAGES])
def test_killed_is_the_same_in_the_end(stages: Stages, name: str, tmp_path: Path) -> None:
    """At different kinds of file operations, in the middle of a write where there is one."""
    step = stages.whole(name).touches // KILLS
    for turn in range(KILLS):
        ended = stages.run(name, tmp_path / "out", Fault(SIGNAL, step - turn % 4))
        assert ended.code == -signal.SIGKILL, ended
        assert_whole(tmp_path / "out")
    stages.finish(name, tmp_path / "out")
