"""The recipe that makes all results anew: its commands, and that an interrupted run of it continues."""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.common.machine import commit
from specpilot.main import COMMANDS, main

from experiments.results.pages import PAGES, TABLES, files_of, filled
from experiments.results.run import chosen, kept, result_of, run_steps, show_plan
from experiments.results.steps import ELSEWHERE, STEPS, Step

from .commands import inert, listening

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_commands_start(step: Step) -> None:
    for command in step.commands:
        assert main(shlex.split(command), inert(COMMANDS)) == 0
    for name in (*step.files, *([step.printed] if step.printed else [])):
        assert (RESULTS / name).is_file()


def test_names_are_unique() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_steps_work_in_folders_of_their_own() -> None:
    owners: dict[str, str] = {}
    for step in STEPS:
        heard: list[Any] = []
        for command in step.commands:
            assert main(shlex.split(command), listening(COMMANDS, heard)) == 0
        for options in filter(is_dataclass, heard):
            for name in {"work", "folder", "output"} & vars(options).keys():
                folder = str(vars(options)[name])
                assert owners.setdefault(folder, step.name) == step.name or folder == "None"


def test_every_result_has_its_source() -> None:
    made = {name for step in STEPS for name in (*step.files, *([step.printed] if step.printed else []))}
    found = {file.name for file in RESULTS.glob("*.json")}
    assert found == {name for name in made if name.endswith(".json")} | ELSEWHERE.keys()
    assert not made & ELSEWHERE.keys()


def test_one_result_is_added_to_another() -> None:
    step = Step("serve.json", ("bench serve", "bench soak"), printed="serve.json", adds="soak")
    assert json.loads(result_of(step, ['ready\n{"load": 1}\n', '{"lost": 0}\n'])) == {"load": 1, "soak": {"lost": 0}}
    assert result_of(replace(step, adds=None), ["{}", "x\n{1}\n"]) == "{1}"


def test_what_another_command_has_added_stays(tmp_path: Path) -> None:
    step = Step("serve.json", ("bench serve",), printed="serve.json", keeps="external")
    assert json.loads(kept(step, '{"load": 2}', tmp_path)) == {"load": 2}
    (tmp_path / "serve.json").write_text('{"load": 1, "external": 3}')
    assert json.loads(kept(step, '{"load": 2}', tmp_path)) == {"load": 2, "external": 3}
    assert json.loads(kept(replace(step, keeps=None), '{"load": 2}', tmp_path)) == {"load": 2}


def test_steps_come_with_what_they_need() -> None:
    names = [step.name for step in chosen(STEPS, ["trees.json"])]
    assert names == ["cost.json", "A", "A-features", "light", "A0", "lightg", "trees.json"]
    assert chosen(STEPS, None) == list(STEPS)
    with pytest.raises(InputError, match=r"only='tree\.json': no step has this name; the steps are A, A-features"):
        chosen(STEPS, ["tree.json"])


def test_an_interrupted_run_continues(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, publish = tmp_path / "work", tmp_path / "results"
    first = Step("help.json", ("bench --help",), printed="help.json", files={"copy.json": "help.json"})
    broken = Step("broken", ("bench stopping --output x.json --no-such-flag",))
    said = io.StringIO()
    console = Console(file=said, width=200)
    with pytest.raises(InputError, match="ended with exit code 2"):
        run_steps([first, broken], folder, publish, "abc", console)
    assert "no-such-flag" in capfd.readouterr().err
    assert (publish / "help.json").read_bytes() == (folder / "help.json").read_bytes() != b""
    assert (publish / "copy.json").read_bytes() == (publish / "help.json").read_bytes()

    (publish / "help.json").unlink()
    run_steps([first], folder, publish, "abc", console)
    assert "1 of 1  help.json: done" in said.getvalue()
    assert not (publish / "help.json").exists()  # not run again
    run_steps([first], folder, publish, "another", console)
    assert (publish / "help.json").exists()
    show_plan([first, broken], folder, "abc", console)
    assert "broken: to do\n    specpilot bench stopping" in said.getvalue()


def test_results_name_their_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "spectr", "--limit", "1", "--max-new-tokens", "4"]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made["commit"] == commit()


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_those_of_the_results(name: str) -> None:
    """After new results: ``python -m experiments pages``."""
    page = (DOCS / name).read_text(encoding="utf-8")
    assert filled(page, RESULTS) == page


def test_tables_are_filled() -> None:
    page = "before\n<!-- results: spectr.json -->\n| old |\n<!-- end -->\nafter\n"
    found = filled(page, RESULTS)
    assert found.startswith(
        "before\n<!-- results: spectr.json -->\n\nTokens per target forward:\n\n| rule | L | K = 1 |"
    )
    assert found.endswith(" |\n\n<!-- end -->\nafter\n")
    assert "old" not in found
    assert filled(found, RESULTS) == found
    with pytest.raises(InputError, match="no tables; those with tables are demo"):
        filled(page.replace("spectr", "spectre"), RESULTS)
    assert all((RESULTS / name).is_file() for marker in TABLES for name in files_of(marker))
