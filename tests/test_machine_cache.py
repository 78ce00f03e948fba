"""Costs and precisions are measured once on a machine, in at most a second, and kept in the user's cache folder."""

import json
import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from specpilot.common import machine_cache
from specpilot.common.console import quiet, said_at_the_end
from specpilot.common.errors import InputError
from specpilot.common.machine_cache import BEFORE, cache_folder, described, remembered
from specpilot.controllers.length.cost_model import CostModel
from specpilot.infer.costs import T_DRAFT, T_TOKEN, pair_costs
from specpilot.infer.loading.names import load_model
from specpilot.infer.models import CausalLM, language_model

from .clock import time_forwards
from .tiny import make

COST = CostModel(0.1, 1.0, 0.01)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(machine_cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def found(cost: CostModel = COST, *, good: bool = True, pair: str = "a") -> tuple[CostModel, bool]:
    value, file, how = remembered({"costs": pair}, CostModel, lambda: (cost, good))
    assert (file is None) == (not how.endswith(("kept in", "read from")))
    return value, how == BEFORE


def test_once_for_each_pair_and_machine(folder: Path) -> None:
    other = CostModel(0.2, 2.0, 0.0)
    assert found() == (COST, False)
    assert found(other) == (COST, True)
    assert found(other, pair="b") == (other, False)
    key, threads = described()["key"], torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert described()["key"] != key
        assert found(other) == (other, False)
    finally:
        torch.set_num_threads(threads)
    assert described() == {"folder": str(folder), "key": key, "files": 2}
    assert len([*folder.iterdir()]) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-9],
        lambda text: "[]",
        lambda text: text.replace("0.1", "NaN"),
        lambda text: text.replace("0.1", '"0.1"'),
        lambda text: text.replace('"costs": "a"', '"costs": "b"'),
        lambda text: json.dumps({"key": json.loads(text)["key"]}),
    ],
)
def test_a_damaged_file_is_measured_anew_with_a_line(damage: Callable[[str], str], folder: Path) -> None:
    found()
    (file,) = folder.iterdir()
    file.write_text(damage(file.read_text()))
    other = CostModel(0.2, 2.0, 0.0)
    with pytest.warns(UserWarning, match=f"^{file}: .*measured anew"):
        assert found(other) == (other, False)
    assert found() == (other, True)
    assert [*folder.iterdir()] == [file]


def test_what_cannot_be_kept_is_measured_every_time(folder: Path) -> None:
    assert [found(good=False), found(good=False)] == [(COST, False)] * 2
    folder.write_text("a file")
    assert [found(), found()] == [(COST, False)] * 2
    assert folder.read_text() == "a file"


def test_what_was_found_is_said_where_nothing_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @said_at_the_end()
    def fail() -> None:
        remembered({"costs": "a"}, CostModel, lambda: (COST, True)).log("costs", "1")
        raise InputError("the only line")

    quiet()
    with pytest.raises(InputError):
        fail()
    assert capsys.readouterr().err == ""
    with said_at_the_end(), said_at_the_end():
        remembered({"costs": "b"}, CostModel, lambda: (COST, True)).log("costs", "2")
        assert capsys.readouterr().err == ""
    assert re.fullmatch(rf"specpilot: costs: 2, measured now, kept in {folder}/\S+\n", capsys.readouterr().err)
    for detailed in (False, True):
        quiet(detailed=detailed)
        remembered({"costs": "b"}, CostModel, lambda: (COST, True)).log("costs", "2")
        assert ("costs: 2, measured before, read from" in capsys.readouterr().err) == detailed


@pytest.mark.parametrize(
    ("system", "environment", "expected"),
    [
        ("Linux", {"XDG_CACHE_HOME": "/tmp/x"}, "/tmp/x/specpilot"),
        ("Linux", {"XDG_CACHE_HOME": "x"}, "/home/me/.cache/specpilot"),
        ("Linux", {}, "/home/me/.cache/specpilot"),
        ("Darwin", {}, "/home/me/Library/Caches/specpilot"),
        ("Windows", {"LOCALAPPDATA": "/local"}, "/local/specpilot"),
        ("Linux", {"SPECPILOT_CACHE": "/mine"}, "/mine"),
    ],
)
def test_the_folder(system: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", machine_cache.FOLDER):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment | {"HOME": "/home/me"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(platform, "system", lambda: system)
    assert cache_folder() == Path(expected)


@pytest.mark.parametrize("seconds", [0.001, 0.03, 0.1, 0.2, 0.25, 0.3, 0.9, 3.0])
@pytest.mark.usefixtures("folder")
def test_a_second_at_most(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one forward of each model, if that takes longer. Nothing is measured twice."""
    target, draft = language_model(load_model("tiny")), language_model(load_model("tiny-draft"))
    forwards: list[CausalLM] = []

    def takes(model: CausalLM, tokens: int) -> float:
        forwards.append(model)
        return seconds * (1.0 if model is target else 0.1) * (1 + 0.05 * min(tokens, 9))

    clock = time_forwards(monkeypatch, takes)
    cost = pair_costs(target, draft)
    assert clock.now <= 1.0 or forwards == [target, draft]
    if seconds < 0.1:
        assert cost.verification(1) == pytest.approx(1.05 * seconds)
        assert cost.t_draft == pytest.approx(0.105 * seconds)
        assert cost.t_verify_token == pytest.approx(0.05 * seconds)
    if seconds >= 0.9:
        assert cost.t_draft == pytest.approx(T_DRAFT * cost.verification(1))
        assert cost.t_verify_token == pytest.approx(T_TOKEN * cost.verification(1))


@pytest.mark.usefixtures("folder")
def test_another_pair_or_precision_is_measured_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time_forwards(monkeypatch, lambda model, n: 0.001)
    target, draft = (CausalLM(make(seed=seed)) for seed in range(2))
    for pair in ((target, None), (draft, None), (target, draft), (target, CausalLM(make(seed=1).bfloat16()))):
        before = clock.now
        cost = pair_costs(*pair)
        measured = clock.now
        assert pair_costs(*pair) == cost
        assert clock.now == measured > before
