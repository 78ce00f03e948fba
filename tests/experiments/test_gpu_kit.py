"""The measurements of a GPU from end to end, on a CPU with a tiny pair."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from specpilot.common.errors import InputError

from experiments.__main__ import main
from experiments.gpu import command, kernels, measurements, results, stages, subject
from experiments.gpu.results import Results

CPU = ["gpu", "--device", "cpu", "--shapes", "tiny"]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set all sizes of the measurements to their minimum."""
    monkeypatch.setattr(results, "code", lambda: "this")
    monkeypatch.setattr(subject, "REPEATS", 1)
    for name, value in {
        "NEW": 8, "PASSES": 1, "COLUMNS": (256, 512), "TEXTS": 3, "PROMPTS": range(70, 150, 40),
        "FORWARDS": [(1, 1), (1, 4), (1, 8), (4, 4), (16, 4)],
    }.items():  # fmt: skip
        monkeypatch.setattr(measurements, name, value)
    for name, value in {"PROMPT_TOKENS": 20, "NEW": 8, "TEXTS": 3, "WINDOW": 16, "REPEATED": 1}.items():
        monkeypatch.setattr(stages, name, value)


def entries(output: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(output.read_text())["results"]
    return stored


def test_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_tests", lambda output: {"passed": True, "last line": "", "failed": []})
    output = tmp_path / "new" / "gpu.json"
    assert main([*CPU, "--graphs", "[on,off]", "--output", str(output)]) == 0
    stored = entries(output)
    assert not [name for name, entry in stored.items() if "error" in entry["result"]]
    assert all(entry["commit"] == "this" and entry["gpu"] and entry["seconds"] >= 0 for entry in stored.values())
    names = [name for name in stored if not name.startswith(("kernels", "pair"))]
    speeds = [name.partition("graphs on, ")[2] for name in names if name.startswith("speed")]
    assert speeds[:6] == [
        "ours, K=0", "transformers", "ours, K=4", "ours, K=2", "transformers, assisted", "ours, confidence:0.4",
    ]  # fmt: skip
    assert {"ours, K=4, 16 texts", "transformers, 4 texts", "ours, entropy:0.5", "ours, K=8"} <= {*speeds}
    steady_names = [name for name in names if not name.startswith("speed")]
    kind = "tiny, graphs on"
    assert steady_names == [
        "floor", f"steps: {kind}", f"profile: {kind}, 1 tokens", f"profile: {kind}, 8 tokens", f"rounds: {kind}",
        *(f"long: {kind}, {n} columns, {shape}" for n in (256, 512) for shape in ("1x1", "1x8", "3x1")),
        f"long: {kind}, captures", f"long: {kind}, prompts",
        *(f"stages: {kind}, {name}" for name in [*stages.STAGES, "reading"]), "steps: tiny, graphs off", "tests",
    ]  # fmt: skip
    assert names[-2:] == ["speed: tiny, graphs on, transformers, static cache, compiled", "tests"]  # what takes longest
    assert {"launches", "graphs", "reads"} <= stored["rounds: tiny, graphs on"]["result"]["K=4"].keys()
    profiled = stored["profile: tiny, graphs on, 8 tokens"]["result"]
    assert profiled["kernels"] > 3 * profiled["kernels a layer"] > 0
    assert len(profiled["top"]) == measurements.TOP
    errors = capsys.readouterr().err
    assert "milliseconds of a forward by texts x tokens" in errors
    assert "operators of a forward" in errors

    again = output.read_bytes()
    monkeypatch.setattr(measurements, "steps", lambda subject: pytest.fail("measured again"))
    assert main([*CPU, "--graphs", "[on,off]", "--parts", "[floor,steps,speed]", "--output", str(output)]) == 0
    assert output.read_bytes() == again


def test_failures_are_recorded_and_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*CPU, "--graphs", "on", "--parts", "[steps,stages]", "--output", str(tmp_path / "gpu.json")]
    order: list[str] = []

    def failing(subject: Any) -> Any:
        order.append("steps")
        raise ValueError("no room\nfor it")

    monkeypatch.setattr(measurements, "steps", failing)
    monkeypatch.setattr(stages, "STAGES", {})
    monkeypatch.setattr(measurements, "reading", lambda subject: order.append("stages") or {"read": 1})
    assert main(words) == 0
    stored = entries(tmp_path / "gpu.json")
    assert stored["steps: tiny, graphs on"]["result"] == {"error": "ValueError: no room"}
    assert stored["stages: tiny, graphs on, reading"]["result"] == {"read": 1}

    monkeypatch.setattr(results, "code", lambda: "another")
    stored["steps: tiny, graphs on"]["commit"] = "another"
    (tmp_path / "gpu.json").write_text(json.dumps({"results": stored}))
    assert main(words) == 0
    assert order == ["steps", "stages", "stages", "steps"]  # all but the error are of another commit


def test_what_is_measured_is_kept_when_the_run_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*CPU, "--parts", "[profile,stages]", "--output", str(tmp_path / "gpu.json")]

    def killed(subject: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stages, "STAGES", {"one": killed})
        assert main(words) == 130
    remaining = entries(tmp_path / "gpu.json")
    assert [name.partition(":")[0] for name in remaining] == ["pair", "profile", "profile"]
    monkeypatch.setattr(stages, "STAGES", {"one": lambda subject: {"tokens/s": 1}})
    monkeypatch.setattr(measurements, "reading", lambda subject: {"tokens/s": 2})
    assert main(words) == 0
    stored = entries(tmp_path / "gpu.json")
    new = [f"stages: tiny, graphs on, {name}" for name in ("one", "reading")]
    assert stored == remaining | {name: stored[name] for name in new}


def test_results_of_another_commit_or_card_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, console, calls = tmp_path / "gpu.json", Console(quiet=True), []
    turns = [("this", "one"), ("this", "one"), ("this", "two"), ("that", "two")]
    for name, card in turns:
        monkeypatch.setattr(results, "code", lambda name=name: name)
        measured = Results(path, card, console).measure("a", lambda: calls.append(0) or len(calls))
        assert measured == len(calls)
        assert entries(path)["a"] | {"seconds": 0} == {"commit": name, "gpu": card, "seconds": 0, "result": measured}
    assert len(calls) == 3


def test_files_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of results of version 0.2.0 keeps its contents; files of other versions are refused."""
    floor, steps = {"read TB/s": 4.2, "launch µs": 7.5}, {"1x1": 6.85, "draft step": 7.4}
    header = {"machine": {}, "versions": {}, "gpu": "NVIDIA H200", "commit": "fba84ba"}
    old = json.dumps(header | {"floor": floor, "steps: Llama-3.1-8B, graphs on": steps})
    (tmp_path / "old.json").write_text(old)
    opened = Results(tmp_path / "old.json", "NVIDIA H200", Console(quiet=True))
    opened.measure("new", lambda: 1)
    before, after = json.loads(old), entries(tmp_path / "old.json")
    assert after["floor"] == {k: before[k] for k in ("commit", "gpu")} | {"seconds": None, "result": before["floor"]}
    assert len(after) == len(before.keys() - {"machine", "versions", "gpu", "commit"}) + 1
    for text in ("[1]", "{", '{"a": 1}', '{"results": {"a": 1}}', '{"results": {"a": {"commit": 1}}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match="no file of results"):
            Results(tmp_path / "bad.json", "", Console(quiet=True))


def test_programs_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Programs are distinguished by the commit, or by the contents of the files if they differ or there is no git."""
    monkeypatch.undo()
    monkeypatch.setattr(results, "commit", lambda file: "abc")
    assert results.code() == "abc"
    monkeypatch.setattr(results, "CHECKOUT", tmp_path)
    (tmp_path / "infer").mkdir()
    (tmp_path / "infer" / "a.py").write_text("1")
    identities = []
    for name in ("abc+changes", None):
        monkeypatch.setattr(results, "commit", lambda file, name=name: name)
        identities.append(results.code())
    assert identities[0].startswith("abc+")
    assert identities[1].startswith("files ")
    (tmp_path / "infer" / "a.py").write_text("2")
    assert results.code() != identities[1]


def test_a_pair_is_made_as_strong_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "gpu.json"
    assert main([*CPU, "--parts", "rounds", "--output", str(output)]) == 0
    stored_results = Results(output, results.card("cpu"), Console(quiet=True))
    monkeypatch.setattr("experiments.synthetic_pair._bisected", lambda *_: pytest.fail("measured again"))
    pair = command.pair_of("tiny", measurements.torch.device("cpu"), stored_results)
    assert pair is not None
    before = stored_results.current("pair: tiny")
    again = command.measured(pair.target, pair.draft)
    assert again == {name: pytest.approx(before[name], abs=1e-3) for name in again}


def test_operators_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    torch = measurements.torch
    a = torch.ones(4, 4)
    counts = kernels.counted(lambda: (a.view(2, 8).t()[0].expand(3, 2).softmax(-1) + 1).mul_(2).reshape(-1))
    assert counts == {"softmax": 1, "add": 1, "mul_": 1}
    assert kernels.counted(lambda: torch.nn.functional.rms_norm(a, [4])) == {"rms_norm": 1}
    operators = kernels.count("llama", 1)
    assert operators["ours"]["of a layer"]["index_put_"] == 1  # keys and values together
    assert operators["ours"]["a layer"] == 16
    assert sum(operators["ours"]["of a layer"].values()) == operators["ours"]["a layer"]


def test_the_two_runs_of_the_documentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of the page run with a Python that records its arguments: options exist, and results are copied."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "out").mkdir()
    stub = 'printf "%s " "$@" >>calls; echo >>calls; touch runs/gpu.json\n'
    for name, lines in {"python3": "case $* in *pip*) exit;; esac\n" + stub, "nvidia-smi": "\n"}.items():
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n" + lines)
        (tmp_path / "bin" / name).chmod(0o755)
    blocks = re.findall(r"```sh\n(export .*?)```", Path("docs/gpu.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    calls = []
    for block in blocks:
        environment = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "OUT": str(tmp_path / "out")}
        (tmp_path / "calls").unlink(missing_ok=True)
        subprocess.run(["bash", "-c", block], cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
        calls.append((tmp_path / "calls").read_text().splitlines())
        assert (tmp_path / "out" / "gpu.json").exists()
        assert (tmp_path / "out" / "gpu.txt").exists()
    assert [len(lines) for lines in calls] == [3, 2]
    assert calls[0][1].split() == ["-m", "pytest", "-n", "8", "-vv", "-m", "gpu", "tests/gpu"]
    for line in (calls[0][0], calls[0][2], *calls[1]):
        words = line.split()
        assert words[:3] == ["-m", "experiments", "gpu"]
        with pytest.raises(SystemExit, match="0"):
            main([*words[2:], "--print-config"])
        assert "parts" in capsys.readouterr().out
