"""The router's benchmark: tables from known runs, and the whole once on tiny models."""

import json
from pathlib import Path

import numpy as np
import pytest
from specpilot.infer.generation import Stats

from experiments.__main__ import main
from experiments.papers import selection
from experiments.router.study import ArmTimings, accuracy, rate_row

from ..tiny import byte_tokenizer, make


def run(tokens: int, seconds: float) -> Stats:
    return Stats(n_generated=tokens, seconds=seconds * 0.75, prefill_seconds=seconds * 0.25)


TIMINGS = ArmTimings(
    {
        ("autoregressive", ""): [run(10, 1.0), run(10, 1.0), run(20, 2.0)],
        ("one", "4"): [run(10, 0.5), run(10, 2.0), run(20, 1.0)],
        ("two", "4"): [run(12, 2.0), run(10, 0.5), run(20, 4.0)],
    }
)


def test_a_policys_figure_is_that_of_the_runs_it_chose() -> None:
    row = TIMINGS.row(["one", "two", "autoregressive"], np.array([0, 1, 2]), "4")
    assert row["tokens_per_second"] == pytest.approx(40 / 3.0)
    assert row["speedup"] == pytest.approx((40 / 3.0) / 10)
    assert row["low"] <= row["speedup"] <= row["high"]
    only = TIMINGS.row(["one", "two"], np.array([0, 1, 0]), "4", np.array([False, True, False]))
    assert only["speedup"] == pytest.approx(2)
    assert rate_row(TIMINGS.of("one", "4"), TIMINGS.of("two", "4"))["ratio"] == pytest.approx((40 / 3.5) / (42 / 6.5))


def test_accuracy_counts_where_there_is_something_to_select() -> None:
    worth = np.array([[1.0, 2.0], [1.0, 2.0], [1.5, 1.51], [1.5, 1.51]])
    found = accuracy(np.array([1, 0, 0, 0]), worth, np.array(["a", "a", "b", "b"]))
    assert found["all_domains"] == 0.25
    assert (found["where_domains_differ"], found["prompts_there"]) == (0.5, 2)
    assert accuracy(np.array([0]), np.array([[1.0, 1.0]]), np.array(["a"]))["where_domains_differ"] is None


def test_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random models: the figures mean nothing, but all of them are there."""
    tokenizer = byte_tokenizer()
    for name, seed, layers in (("target", 0, 2), ("one", 1, 1), ("two", 2, 1)):
        make(seed=seed, vocab=257, layers=layers, context=1024).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    target, one, two = (str(tmp_path / name) for name in ("target", "one", "two"))
    words = f"router --target {target} --drafts [{one},{two}] --pair [{one},{two}] --exits [1] --limit 8 --repeats 2"
    words += " --train-limit 40 --max-new-tokens 4 --examples [10] --seeds 1 --alphas [0.5] --lengths [5]"
    words += f" --temperatures [0.5] --work {tmp_path}/work --output {tmp_path}/router.json"
    assert main(words.split()) == 0
    result = json.loads((tmp_path / "router.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert {"mixture", "autoregressive_loss", "selection_accuracy", "throughput_vs_best_arm"} <= result.keys()
    assert {"table_1", "figure_2", "figure_3", "table_3_4", "table_6", "tables_11_12"} <= result["tables"].keys()
    report = selection.report(result)  # what `experiments papers` makes of it
    brief = {row["figure"]: row["here"] for row in report.tables[0].rows}
    assert brief["router's share of the time"] == f"{result['overhead_share']:.2%}"
    assert sum("Table 5" in table.title for table in report.tables) == len(result["tables"]["table_5"])
    report.draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")

    assert main(words.split()) == 0  # the datasets are there: nothing is made again
    assert "already complete" in " ".join(capsys.readouterr().err.split())
