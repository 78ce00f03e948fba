"""The demo from end to end, small, on the models that ship."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.compare.comparison import CONFIDENCE, FIXED
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length.cost_model import CostModel
from specpilot.demo import OURS, SPECDEC, run_demo

SMALL = {"prompts": 40, "held_out": 3, "max_new_tokens": 12, "seed": 0}


def test_demo(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    console = Console(record=True, width=150, force_terminal=False)
    run_demo(output, **SMALL, console=console)
    report = json.loads((output / "report.json").read_text())
    names = ["none", OURS, SPECDEC, FIXED, CONFIDENCE]
    assert list(report["decoders"]) == names
    assert all(row["clock"] is not None and row["replay"] is not None for row in report["decoders"].values())
    assert report["greedy"] == {"checked": 3, "identical": 3}
    assert CostModel(**report["costs"][OURS]) == CostModel.load(output / "cost.json")
    assert report["seconds"].keys() == {"data", "training", "export", "compare", "greedy", "total"}
    page = (output / "report.md").read_text()
    assert all(name in page for name in names)
    assert report["sentences"][0] in page
    assert load_controller(str(output / "controller")).config.kind == "lag-free-head"
    assert load_controller(str(output / "specdec")).config.provenance.target == "tiny"
    shown = console.export_text()
    gain = f"by replay at the costs measured here, the {OURS} is"
    assert shown.index("rejected draft") < shown.index("Results") < shown.index(gain) < shown.rindex("tokens/s")

    (output / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"no demo's \(notes\.txt\)"):
        run_demo(output, **SMALL, console=Console(quiet=True))
    assert (output / "report.json").exists()
