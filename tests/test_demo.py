"""The demo from end to end, small, on the models that ship."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.errors import InputError
from specpilot.demo import CONFIDENCE, FIXED, THRESHOLDS, run_demo

SMALL = {"prompts": 40, "held_out": 3, "max_new_tokens": 12, "seed": 0}


def test_demo(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    console = Console(record=True, width=150, force_terminal=False)
    run_demo(output, **SMALL, console=console)
    report = json.loads((output / "report.json").read_text())
    names = ["autoregressive", *(f"fixed-{k}" for k in FIXED)]
    names += [*(f"confidence-{c}" for c in CONFIDENCE), *(f"head-{h}" for h in THRESHOLDS)]
    assert list(report["decoders"]) == names
    cost, plain = report["cost"], report["decoders"]["autoregressive"]
    for row in report["decoders"].values():
        assert row["speedup"] == pytest.approx(row["tokens_per_second"] / plain["tokens_per_second"])
        assert row["block_efficiency"] == pytest.approx(1 / row["verification_rate"])
        seconds = cost["t_draft"] * (1 + row["discard_rate"] - row["verification_rate"])
        seconds += cost["t_target"] * row["verification_rate"]
        assert row["throughput_eq23"] == pytest.approx(1 / seconds)
    assert (plain["verification_rate"], plain["discard_rate"]) == (1, 0)
    assert report["greedy"] == {"checked": 3, "identical": 3}
    assert report["cost"].keys() == {"t_draft", "t_target", "r_squared"}
    assert report["seconds"].keys() == {"data", "training", "export", "decoding", "greedy", "total"}
    assert {"machine", "versions"} <= report.keys()
    assert (output / "pareto.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "report.md").read_text()
    assert all(name in page for name in names)
    assert load_controller(str(output / "controller")).config.provenance.target == "tiny"
    shown = console.export_text()
    assert "best acceptance head" in shown
    assert "rejected draft" in shown

    (output / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"no demo's \(notes\.txt\)"):
        run_demo(output, **SMALL, console=Console(quiet=True))
    assert (output / "report.json").exists()
