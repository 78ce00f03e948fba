"""The demo from end to end, small, on the models that ship."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from specpilot.compare.decoders import ComparedDecoder
from specpilot.compare.settings import CONFIDENCE, FIXED
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length.cost_model import CostModel
from specpilot.demo import COPIES, OURS, SPECDEC, TREES, UNTRAINED, run_demo
from specpilot.infer.options import DecodingOptions
from specpilot.real_model import talk

SMALL = {"prompts": 40, "held_out": 3, "max_new_tokens": 12, "seed": 0}


@pytest.mark.slow  # the README's commands go the same way in the others
def test_demo(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    console = Console(record=True, width=80, force_terminal=False)
    run_demo(output, **SMALL, console=console)
    report = json.loads((output / "report.json").read_text())
    page = (output / "report.md").read_text()
    assert [*report["temperatures"]] == ["1", "0"]
    for one in report["temperatures"].values():
        assert list(one["decoders"]) == ["none", OURS, SPECDEC, COPIES, TREES, UNTRAINED, FIXED, CONFIDENCE]
        assert all(name in page for name in one["decoders"])
        assert {name for name, row in one["decoders"].items() if row["replay"] is None} == {COPIES, TREES, UNTRAINED}
        assert all(row["clock"] is not None for row in one["decoders"].values())
        assert one["sentences"][0] in page
        costs = {name: CostModel(**cost) for name, cost in one["costs"].items()}
        assert CostModel.load(output / "cost.json") in [costs[name] for name in (OURS, COPIES, TREES)]
        assert costs[UNTRAINED] == costs["none"]
    assert report["greedy"] == {"checked": 3, "identical": 3}
    assert load_controller(str(output / "controller")).config.kind == "lag-free-head"
    assert load_controller(str(output / "specdec")).config.provenance.target == "tiny"
    shown = console.export_text()
    places = [shown.index(words) for words in ("4  Comparison", "5  Check", "[the target's own]", "Results")]
    assert places == sorted(places)
    assert all(len(line) <= 80 or str(tmp_path) in line for line in shown.splitlines())


def test_a_model_talks() -> None:
    """As `specpilot demo --real` lets it, here the included one."""
    base = DecodingOptions(target="tiny", draft="tiny-draft+ngram")
    ours = ComparedDecoder.of(base, "ours", length="tiny-lag-free", copies="tiny-copies", tree="auto", cost=0.2)
    console = Console(record=True, width=80, force_terminal=False)
    ratio = talk(base, ours, 12, console)
    shown = " ".join(console.export_text().split())
    assert f"{ratio:.2f} × as fast, with the same text for 3 of 3 prompts" in shown
