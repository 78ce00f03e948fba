"""The ablation: its arithmetic, a run at toy size on the shipped pair, and the same again from what is on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specpilot.compare.recorded import Counts, Setting
from specpilot.controllers.length.cost_model import CostModel

from experiments.__main__ import main
from experiments.studies.ablation import summarise


def test_baselines_take_their_best_parameter_and_ours_has_none() -> None:
    cheap, dear = CostModel(0.01, 1.0, 0.0), CostModel(0.9, 1.0, 0.0)
    long, short = Counts(61, 100, 40, 21), Counts(61, 20, 15, 46)

    def of(counts: Counts) -> dict[str, list[Counts]]:
        return {"a": [counts, counts], "b": [counts]}

    counted: dict[Setting, dict[str, list[Counts]]] = {}
    for name in ("fixed", "confidence", "cumulative confidence", "informed bound", "x, best threshold"):
        counted |= {(name, 1.0): of(short), (name, 9.0): of(long)}
    counted |= {("x, rate-optimal", 0.0): of(long), ("x, rate-optimal", 1.0): of(short)}
    counted |= {("wrong, rate-optimal", 0.0): of(short), ("wrong, rate-optimal", 1.0): of(long)}
    result = summarise(counted, {"0.01": cheap, "0.9": dear}, ["a"], "x")
    assert result["table"]["0.01"]["in_domain"]["fixed"]["parameter"] == 9.0
    assert result["table"]["0.9"]["in_domain"]["fixed"]["parameter"] == 1.0
    for label in ("0.01", "0.9"):
        row = result["ratios"][label]["left_out"]
        assert row["ours"] == row["best_fixed"] == row["best_confidence"]
        assert row["ours_over_best_fixed"]["ratio"] == 1.0
        wrong = result["table"][label]["left_out"]["wrong, rate-optimal"]  # counts at these costs, not at its best
        assert wrong["speedup"] < row["ours"]


def test_it_runs_and_runs_again_from_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ablation", "--controllers", "[head=tiny-head]", "--prompts", "builtin", "--per-domain", "1"]
    words += ["--max-new-tokens", "12", "--folder", str(tmp_path / "cache")]
    printed = []
    for name in ("a.json", "b.json"):
        assert main([*words, "--output", str(tmp_path / name)]) == 0
        printed.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
        assert printed[-1] == json.loads((tmp_path / name).read_text())
    assert printed[0] == printed[1]
    for ratio in ("0.21", "0.05"):
        for group in ("in_domain", "left_out"):
            row = printed[0]["ratios"][ratio][group]
            assert {"best_fixed", "best_confidence", "best_untrained", "informed_bound", "ours"} <= row.keys()
            rows = printed[0]["table"][ratio][group]
            online = (
                "adaptive length",
                "bandit",
                "online confidence, best threshold",
                "online confidence, rate-optimal",
            )
            assert row["best_untrained"] >= max(rows[name]["speedup"] for name in online)
            best = rows["oracle (knows the draws)"]["speedup"]
            assert best >= max(row["informed_bound"], row["ours"], row["best_fixed"])
    kept = next((tmp_path / "cache" / "records").glob("*.json"))
    kept.write_text("{")
    assert main(words) == 2
    assert "not JSON" in capsys.readouterr().err
