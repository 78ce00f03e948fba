"""The benchmark of stopping rules by the clock: its sums, and the command, which continues where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specpilot import main as cli

from experiments.workloads import clock
from experiments.workloads.clock import AUTOREGRESSIVE, CONFIDENCE_RULES, FIXED, LEARNING, summary
from experiments.workloads.decode import Times

NAMES = [AUTOREGRESSIVE, "ours", *FIXED, *CONFIDENCE_RULES, *LEARNING]


def times(rates: list[float]) -> Times:
    """Twelve tokens of each prompt in each of two passes, at the prompts' rates."""
    return Times([[12, 12] for _ in rates], [[12 / rate, 12 / rate] for rate in rates])


def test_ours_is_compared_with_the_best_of_each_grid() -> None:
    found = {name: times([10.0, 10.0, 10.0, 10.0]) for name in NAMES}
    found["ours"] = times([24.0, 24.0, 12.0, 12.0])
    found["3"] = times([20.0, 20.0, 5.0, 5.0])
    found["confidence:0.3"] = times([30.0, 30.0, 5.0, 5.0])
    misfit = {"ours": times([9.0]), "1": times([6.0]), AUTOREGRESSIVE: times([10.0])}
    groups = {"in_domain": ["sql"], "left_out": ["shell"], "sql": ["sql"], "shell": ["shell"]}
    result = summary(found, ["sql", "sql", "shell", "shell"], groups, misfit)
    inside, outside = result["in_domain"], result["left_out"]
    assert {name: inside[name] for name in ("ours", "best_confidence", "best_fixed", "autoregressive")} == (
        pytest.approx({"ours": 24.0, "best_confidence": 30.0, "best_fixed": 20.0, "autoregressive": 10.0})
    )
    assert inside["names"]["best_fixed"] == "3"
    assert inside["names"]["best_confidence"] == "confidence:0.3"
    assert inside["over_best_confidence"]["ratio"] == pytest.approx(0.8)
    assert outside["names"]["best_confidence"] != "confidence:0.3"
    assert outside["over_autoregressive"]["ratio"] == pytest.approx(1.2)
    assert result["misfit"]["over_autoregressive"]["ratio"] == pytest.approx(0.9)
    assert result["worst_over_autoregressive"] == pytest.approx(0.9)


def test_a_parameter_is_chosen_on_the_other_half_of_the_prompts() -> None:
    found = {name: times([10.0, 10.0]) for name in NAMES}
    found["ours"] = times([20.0, 20.0])
    found["1"], found["2"] = times([40.0, 5.0]), times([5.0, 40.0])  # each is the best where the other is not
    result = summary(found, ["sql", "sql"], {"in_domain": ["sql"]}, None)["in_domain"]
    assert result["over_best_fixed_tuned_elsewhere"]["ratio"] == pytest.approx(4.0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "COST_PROMPTS", 1)
    monkeypatch.setattr(clock, "COST_REPEATS", 1)
    words = ["bench", "clock", "--domains", "[sql,dialogue]", "--in-domain", "[sql]", "--per-domain", "1"]
    words += ["--repeats", "1", "--max-new-tokens", "4", "--folder", str(tmp_path / "clock")]
    assert cli.main([*words, "--output", str(tmp_path / "a.json")]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads((tmp_path / "a.json").read_text())
    for group in ("in_domain", "left_out"):
        assert {"ours", "best_confidence", "best_fixed", "autoregressive"} <= result[group].keys()
        assert set(NAMES) <= result[group]["tokens_per_second"].keys()
    assert result["worst_over_autoregressive"] > 0
    next((tmp_path / "clock" / "records").iterdir()).unlink()
    assert cli.main(words) == 0  # measures what is missing, and nothing else
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    rates = [
        found["in_domain"]["tokens_per_second"] | found["left_out"]["tokens_per_second"] for found in (result, again)
    ]
    assert sum(rates[0][name] != rates[1][name] for name in rates[0]) <= 1
    assert cli.main([*words, "--misfit", "tiny-draft-math"]) == 2
    assert "give both or none" in capsys.readouterr().err
