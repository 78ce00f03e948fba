"""The list of experiments, and the list of results: its commands start, and an interrupted run continues."""

import io
import json
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console
from specpilot.cli.commands.train import of_predictor
from specpilot.cli.main import COMMANDS, run
from specpilot.cli.parser import CommandParser
from specpilot.common.errors import InputError
from specpilot_vllm.main import COMMANDS as VLLM_COMMANDS

from experiments.__main__ import command
from experiments.audit import all_versions, audit, read_advisories
from experiments.results import REQUIREMENTS, Requirement, Step, read_steps, run_steps

from ..helpers.commands import inert

STEPS = read_steps()


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_commands_start(step: Step) -> None:
    for line in step.commands:
        program, *words = shlex.split(line)
        if program == "python":
            module, package, name, *_ = words
            assert (module, package) == ("-m", "experiments")
            run(words[2:], inert({name: command(name)}))
            continue
        if program == "specpilot-vllm":
            run(words, inert(VLLM_COMMANDS))
            continue
        assert program == "specpilot"
        if words[:2] == ["train", "acceptance"]:
            CommandParser(of_predictor(words[2:]), prog="train acceptance").read(words[2:])
        else:
            run(words, inert(COMMANDS))


def test_steps_make_what_they_are_named_after_and_read_what_earlier_ones_make() -> None:
    names = [step.name for step in STEPS]
    assert len({*names}) == len(names)
    for place, step in enumerate(STEPS):
        words = {word for line in step.commands for word in re.findall(r"[\w.-]+", line)}
        assert words.isdisjoint(names[place + 1 :])
        assert step.is_printed or step.name in words
        assert {path.partition("/")[0] for path in step.files.values()} <= words


def test_an_interrupted_run_continues(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, root = tmp_path / "0123456789ab", tmp_path / "checkout"
    machine = {"processor": "AMD EPYC", "cores": 2, "threads": 1, "devices": []}
    program = f"print(1); print({json.dumps({'machine': machine})!r})"
    first = Step(
        name="env.json", minutes=1, commands=[f"python -c {shlex.quote(program)}"], files={"copy.json": "env.json"},
        pages=["page.md"],
    )  # fmt: skip
    broken = Step(name="broken", minutes=1, commands=["specpilot env --no-such-flag"])
    root.mkdir()
    (root / "page.md").write_text("<!-- results: source env.json -->\n<!-- end -->\n")
    output = io.StringIO()
    console = Console(file=output, width=200)
    with pytest.raises(InputError, match="ended with exit code 2"):
        run_steps([first, broken], folder, root, console)
    assert "no-such-flag" in capfd.readouterr().err
    results = root / "docs" / "results"
    assert json.loads((results / "env.json").read_text()) == {"commit": "0123456789ab", "machine": machine}
    assert (results / "copy.json").read_bytes() == (results / "env.json").read_bytes()
    assert "commit 01234567, 2 cores of an AMD EPYC, 1 thread" in (root / "page.md").read_text()

    (results / "env.json").unlink()
    run_steps([first], folder, root, console)
    assert "env.json: done in" in output.getvalue()
    assert not (results / "env.json").exists()  # not run again
    run_steps([first, broken], folder, root, console, plan=True)
    assert "broken: to do (1 min, 1 thread)\n    specpilot env" in output.getvalue()


def test_a_step_that_needs_other_hardware_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REQUIREMENTS, "gpu", Requirement("a GPU", lambda: False))
    step = Step(name="gpu", minutes=13, commands=["specpilot env --no-such-flag"], needs=["gpu"], timed=True)
    output = io.StringIO()
    run_steps([step], tmp_path / "work", tmp_path, Console(file=output, width=200))
    assert "gpu: left out, because this machine lacks a GPU (13 min, 1 thread, alone" in output.getvalue()


# The audit of dependencies, which `make check` runs


def test_nothing_that_is_allowed_or_installed_is_affected() -> None:
    assert audit(all_versions(), read_advisories()) == []


def test_pins_and_ranges_are_read(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("# pins\njinja2==3.1.5\n")
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=77,<90"]\n[project]\ndependencies = []\n'
        '[project.optional-dependencies]\nserve = ["h11>=0.14"]\n'
    )
    lines = [line for line in audit(all_versions(tmp_path), read_advisories()) if not line.startswith("installed")]
    assert [line.partition(";")[0] for line in lines] == [
        "constraints.txt: jinja2 3.1.5 is affected by CVE-2025-27516",
        "pyproject.toml: setuptools 77 is affected by CVE-2025-47273",
        "pyproject.toml: h11 0.14 is affected by CVE-2025-43859",
    ]
