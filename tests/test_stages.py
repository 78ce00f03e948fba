"""Every stage is killed again and again and leaves what a run leaves that nobody kills; finished runs are continued."""

import re
import signal
from pathlib import Path

import pytest
import yaml
from specpilot import main as cli

from .folders import assert_whole
from .processes import KILLS, SIGNAL, Fault
from .soak.stages import STAGES, Stages
from .training import last_weights, metrics_rows


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(tmp_path_factory.mktemp("stages"))


SLOW = (  # whose code is mostly that of another stage
    "train lag-free", "train features", "train length-head", "train draft, stored states", "data answers",
    "data rounds",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in STAGES])
def test_killed_is_the_same_in_the_end(stages: Stages, name: str, tmp_path: Path) -> None:
    """At different kinds of file operations, in the middle of a write where there is one."""
    step = stages.whole(name).touches // KILLS
    for turn in range(KILLS):
        ended = stages.run(name, tmp_path / "out", Fault(SIGNAL, step - turn % 4))
        assert ended.code == -signal.SIGKILL, ended
        assert_whole(tmp_path / "out")
    stages.finish(name, tmp_path / "out")


# Finished runs that are trained further


METRICS = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
PLAIN = ("train router", "train features")  # trainers whose steps do not depend on the number of epochs


TRAININGS = [name for name in STAGES if name.startswith("train ")]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in TRAININGS])
def test_more_epochs(stages: Stages, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the undisturbed run, which has two epochs from the beginning."""
    stage = STAGES[name]
    assert stage.reads is not None
    words = [word for word in stage.words if word != "--resume"]
    words += ["--data", str(stages.whole(stage.reads).folder), "--device", "cpu", "--output", str(tmp_path / "grown")]
    assert cli.main([*words, "--epochs", "1"]) == 0
    assert cli.main(words) == 2
    assert "holds a run with epochs=1; pass --resume to train it further" in capsys.readouterr().err
    for _ in range(2):  # the second time there is nothing to do
        assert cli.main([*words, "--resume"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    runs = stages.whole(name).folder, tmp_path / "grown"
    rates = ([row["lr"] for row in metrics_rows(run) if row["epoch"] == "2"] for run in runs)
    assert len({*map(tuple, rates)}) == 1
    names = {re.sub(r"^val_|\d$", "", name) for name in metrics_rows(runs[0])[0]}
    assert [name for name in names if not re.search(rf"`{name}1?`", METRICS)] == []
    settings = [yaml.safe_load((run / "run.yaml").read_text()) for run in runs]
    assert settings[0] == settings[1]
    assert (runs[1] / "result.json").exists()
    if name in PLAIN:
        ours, theirs = map(last_weights, runs)
        assert all(bool((ours[weight] == theirs[weight]).all()) for weight in ours)
    assert cli.main([*words, "--resume", "--epochs", "1"]) == 2
    assert "belongs to a run with epochs=2, now it is 1" in capsys.readouterr().err
