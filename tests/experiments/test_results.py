"""The list of experiments, and the list of results: its commands start, and an interrupted run continues."""

import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console
from specpilot.commands.train import of_predictor
from specpilot.common.errors import InputError
from specpilot.main import COMMANDS, run
from specpilot.parser import CommandParser

from experiments.__main__ import EXPERIMENTS, command, main
from experiments.results import Step, chosen, read_steps, run_steps

from ..commands import inert

STEPS = read_steps()


def test_help_lists_every_experiment_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, experiment in EXPERIMENTS.items():
        assert any(line.split() == [name, *experiment.summary.split()] and len(line) <= 80 for line in lines)
        assert (command(name).__doc__ or "").strip()


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_commands_start(step: Step) -> None:
    for line in step.commands:
        program, *words = shlex.split(line)
        if program == "python":
            _, package, name, *_ = words
            assert package == "experiments"
            run(words[2:], inert({name: command(name)}))
        elif words[:2] == ["train", "acceptance"]:
            CommandParser(of_predictor(words[2:]), prog="train acceptance").read(words[2:])
        else:
            run(words, inert(COMMANDS))


def test_steps_come_with_what_they_need() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert [step.name for step in chosen(STEPS, ["light"])] == ["A", "A-features", "light"]
    assert chosen(STEPS, None) == STEPS
    with pytest.raises(InputError, match=r"only='tree\.json': no step has this name; the steps are A, A-features"):
        chosen(STEPS, ["tree.json"])


def test_an_interrupted_run_continues(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, publish = tmp_path / "work", tmp_path / "results"
    first = Step(
        name="env.json", commands=["""python -c 'print("x"); print("{\\"a\\": 1}")'"""],
        files={"copy.json": "env.json"}, keeps=["b"],
    )  # fmt: skip
    broken = Step(name="broken", commands=["specpilot env --no-such-flag"])
    publish.mkdir()
    (publish / "env.json").write_text('{"a": 0, "b": 2}')  # b is what another command has added
    said = io.StringIO()
    console = Console(file=said, width=200)
    with pytest.raises(InputError, match="ended with exit code 2"):
        run_steps([first, broken], folder, publish, console)
    assert "no-such-flag" in capfd.readouterr().err
    assert json.loads((publish / "env.json").read_text()) == {"a": 1, "b": 2}
    assert (publish / "copy.json").read_bytes() == (publish / "env.json").read_bytes()

    (publish / "env.json").unlink()
    run_steps([first], folder, publish, console)
    assert "env.json: done in" in said.getvalue()
    assert not (publish / "env.json").exists()  # not run again
    run_steps([first, broken], folder, publish, console, plan=True)
    assert "broken: to do\n    specpilot env" in said.getvalue()
