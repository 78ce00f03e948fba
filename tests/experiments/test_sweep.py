"""The sweep over acceptance heads: its arithmetic by hand, and a toy-sized one."""

import json
from pathlib import Path

import pytest
import torch
from specpilot.compare.recorded import Counts, Tracer, replay_counts
from specpilot.controllers.acceptance.specdec_head import AcceptanceHead
from specpilot.controllers.length import AcceptanceLength, HeadPredictor
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder

from experiments.__main__ import main
from experiments.papers import specdecpp
from experiments.studies.heads import Head, SweepOptions, precompute
from experiments.studies.held_out import held_out
from experiments.studies.sweep_tables import costs_of, summarise

METRICS = {"kl": 0.4, "kl_undone": 0.3, "auroc": 0.7, "brier_undone": 0.1}
COSTS = {"loop": {"t_draft": 1.0, "t_target": 5.0, "r_squared": 0.99}}
TOY = [
    "--prompts", "builtin", "--train-prompts", "20", "--per-domain", "1", "--max-new-tokens", "8", "--depths", "[0,1]",
    "--weights", "[6]", "--thresholds", "[0.3,0.7]", "--lengths", "[2,4]", "--confidences", "[0.4]", "--epochs", "1",
]  # fmt: skip


def head(depth: int = 0, w_rej: float = 1.0) -> Head:
    return Head(depth, w_rej, AcceptanceHead(4, depth), "0" * 64, METRICS)


def test_the_tables_by_hand() -> None:
    """Ten tokens a text: throughput is 10 / (drafted·t_draft + target forwards·t_target), nothing being trimmed."""
    counted = {
        ("fixed", 2.0): {"math": [Counts(10, 8, 6, 4, 4)], "shell": [Counts(10, 10, 5, 5, 5)]},
        ("fixed", 4.0): {"math": [Counts(10, 12, 7, 3, 3)], "shell": [Counts(10, 20, 5, 5, 5)]},
        ("confidence", 0.4): {"math": [Counts(10, 7, 6, 4, 4)], "shell": [Counts(10, 6, 4, 6, 6)]},
        ("head D=0 w=1", 0.3): {"math": [Counts(10, 8, 7, 3, 3)], "shell": [Counts(10, 5, 4, 6, 6)]},
        ("head D=0 w=1", 0.7): {"math": [Counts(10, 9, 7, 3, 3)], "shell": [Counts(10, 5, 5, 5, 5)]},
    }
    result = summarise(counted, [head()], ["math"], costs_of(COSTS))
    inside, outside = (result["table_1"]["measured"][group] for group in ("in_domain", "left_out"))
    assert inside["best_fixed"]["parameter"] == 4
    assert inside["best_fixed"]["throughput"] == pytest.approx(10 / (12 + 3 * 5))
    assert inside["best_fixed"]["over_autoregressive"] == pytest.approx(5 * 10 / 27)
    assert (inside["best_fixed"]["discard_rate"], inside["best_fixed"]["verification_rate"]) == (0.5, 0.3)
    assert inside["best_head"]["parameter"] == 0.3
    assert inside["best_head_over_best_fixed"] == pytest.approx({"ratio": 27 / 23, "low": 27 / 23, "high": 27 / 23})
    assert outside["best_confidence"]["throughput"] == pytest.approx(10 / (6 + 6 * 5))
    assert outside["best_head"]["parameter"] == 0.7
    assert "paper_setting" not in inside
    cheap = result["table_1"]["0.21"]["in_domain"]["best_fixed"]
    assert cheap["throughput"] == pytest.approx(10 / (12 * 0.21 * 5 + 3 * 5))
    (row,) = result["table_3"]
    assert row["best"]["math"] == {"threshold": 0.3, "throughput": pytest.approx(10 / 23)}
    assert row["eval"] == METRICS
    assert [point["rule"] for point in result["figure_4"]["left_out"]].count("fixed") == 2


def test_precomputed_predictions_are_those_of_serving() -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=4)
    tracer = Tracer(decoder, SamplingParams(1.0, 50), 16, seed=0)
    torch.manual_seed(0)
    head = AcceptanceHead(128, 2)
    rows = next(iter(held_out(SweepOptions(prompts="builtin", per_domain=3)).values()))
    traces = tracer.traces(rows)
    predictors = precompute(head, traces)
    stops = decoder.stop_tokens
    for threshold in (0.2, 0.6):
        found = replay_counts(traces, lambda i, h=threshold: AcceptanceLength(predictors[i], h), stops)
        assert found == replay_counts(traces, lambda i, h=threshold: AcceptanceLength(HeadPredictor(head), h), stops)


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
