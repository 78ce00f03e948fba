"""The sweep over acceptance heads: its arithmetic by hand, and a toy-sized one."""

import json
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.papers import specdecpp

COSTS = {"loop": {"t_draft": 1.0, "t_target": 5.0, "r_squared": 0.99}}
TOY = [
    "--prompts", "builtin", "--train-prompts", "20", "--per-domain", "1", "--max-new-tokens", "8", "--depths", "[0,1]",
    "--weights", "[6]", "--thresholds", "[0.3,0.7]", "--lengths", "[2,4]", "--confidences", "[0.4]", "--epochs", "1",
]  # fmt: skip


def test_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forward = {"t_draft": 0.5, "t_verify": 4.0, "t_verify_token": 0.5, "r_squared": 0.9}
    (tmp_path / "cost.json").write_text(json.dumps({**COSTS, "forward": forward}))
    words = ["sweep", *TOY, "--cost", str(tmp_path / "cost.json"), "--folder", str(tmp_path / "sweep")]
    assert main([*words, "--output", str(tmp_path / "new" / "o.json")]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((tmp_path / "new" / "o.json").read_text()) == result
    assert len([*(tmp_path / "sweep" / "records").glob("*.json")]) == 6 * 4
    assert (tmp_path / "sweep" / "pareto.png").read_bytes().startswith(b"\x89PNG")
    report = specdecpp.report(result)  # what `experiments papers` makes of it
    one, _, _, heads_table = report.tables
    assert [row["prompts"] for row in one.rows] == list(specdecpp.GROUPS.values())
    best = result["table_1"]["measured"]["in_domain"]["best_fixed"]
    assert one.rows[0]["best fixed K"] == f"{best['throughput']:.1f} (fixed {best['parameter']:g})"
    assert [(row["D"], row["paper's KL"]) for row in heads_table.rows] == [("0", "0.637"), ("1", "0.596")]
