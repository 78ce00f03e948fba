"""The demo from end to end, small, on the models that ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from specpilot import demo
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length.cost_model import CostModel
from specpilot.demo import CONFIDENCE, FIXED, THRESHOLDS, run_demo
from specpilot.demo_report import best_by_family, gains

SMALL = {"prompts": 40, "held_out": 3, "max_new_tokens": 12, "seed": 0}


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "COST_PROMPTS", 2)
    monkeypatch.setattr(demo, "COST_REPEATS", 1)
    output = tmp_path / "demo"
    console = Console(record=True, width=150, force_terminal=False)
    run_demo(output, **SMALL, console=console)
    report = json.loads((output / "report.json").read_text())
    names = ["autoregressive", *(f"fixed-{k}" for k in FIXED)]
    names += [*(f"confidence-{c}" for c in CONFIDENCE), *(f"head-{h}" for h in THRESHOLDS), "ours"]
    assert list(report["decoders"]) == names
    cost, plain = report["cost"], report["decoders"]["autoregressive"]
    for row in report["decoders"].values():
        assert row["speedup"] == pytest.approx(row["tokens_per_second"] / plain["tokens_per_second"])
        assert row["block_efficiency"] == pytest.approx(1 / row["verification_rate"])
        seconds = cost["t_draft"] * (1 + row["discard_rate"] - row["verification_rate"])
        seconds += cost["t_target"] * row["verification_rate"]
        assert row["throughput_eq23"] == pytest.approx(1 / seconds)
    assert (plain["verification_rate"], plain["discard_rate"]) == (1, 0)
    speed = {name: report[name] for name in ("ours", "best_confidence", "best_fixed", "specdec_head", "autoregressive")}
    over = {"confidence": "best_confidence", "fixed": "best_fixed", "head": "specdec_head"}
    for family, name in {**over, "autoregressive": "autoregressive"}.items():
        assert report["ours_over"][family]["ratio"] == pytest.approx(speed["ours"] / speed[name])
    assert report["replay"].keys() == {"ours", "best_fixed", "best_confidence", "informed_bound"}
    assert report["greedy"] == {"checked": 3, "identical": 3}
    assert report["cost"].keys() == {"t_draft", "t_target", "r_squared"}
    assert report["settings"]["stopping_cost"] == CostModel.load(output / "cost.json").as_dict()
    stages = {"data", "training", "export", "cost", "decoding", "replay", "greedy", "total"}
    assert report["seconds"].keys() == stages
    assert {"machine", "versions"} <= report.keys()
    assert (output / "pareto.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "report.md").read_text()
    assert all(name in page for name in names)
    assert page.splitlines()[2] == f"* {gains(report)[0]}"
    assert load_controller(str(output / "controller")).config.kind == "lag-free-head"
    assert load_controller(str(output / "specdec")).config.provenance.target == "tiny"
    shown = console.export_text()
    assert shown.index("Ours (lag-free head") < shown.index("rejected draft") < shown.index("eq. 2.3 tok/s")

    (output / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"no demo's \(notes\.txt\)"):
        run_demo(output, **SMALL, console=Console(quiet=True))
    assert (output / "report.json").exists()


def test_best_by_family() -> None:
    speed = {"autoregressive": 3.0, "fixed-1": 4.0, "fixed-2": 5.0, "head-0.9": 1.0, "head-0.7": 0.5, "ours": 2.0}
    assert best_by_family(speed) == {
        "autoregressive": "autoregressive", "fixed": "fixed-2", "head": "head-0.9", "ours": "ours"
    }  # fmt: skip


def test_gains() -> None:
    """A controller that loses is said to lose."""
    rows = {"autoregressive": (1.3, 1.2, 1.4), "confidence": (0.9, 0.85, 0.95), "fixed": (1.02, 0.99, 1.05)}
    rows |= {"head": (1.1, 1.05, 1.15)}
    report: dict[str, Any] = {
        "ours": 130.0,
        "ours_over": {name: dict(zip(("ratio", "low", "high"), row, strict=True)) for name, row in rows.items()},
        "best": {"confidence": "confidence-0.3", "fixed": "fixed-2", "head": "head-0.9"},
        "replay": {"best_fixed": 1.2, "best_confidence": 1.25, "ours": 1.3, "informed_bound": 1.4},
    }
    first, by_clock, by_replay = gains(report)
    assert "130 tokens/s by the clock, 1.30 (1.20–1.40)× autoregressive" in first
    assert "10.0 % slower (-15.0 to -5.0) than the best confidence rule (confidence-0.3)" in by_clock
    assert "2.0 % faster (-1.0 to +5.0), within the noise, than the best fixed length (fixed-2)" in by_clock
    assert "10.0 % faster (+5.0 to +15.0) than SpecDec++'s head" in by_clock
    assert "informed bound 1.40×" in by_replay
    assert "50% of the way" in by_replay
