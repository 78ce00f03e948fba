"""The router's benchmark: tables from known runs, and the whole once on tiny models."""

import json
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.papers import selection

from ..tiny import byte_tokenizer, make


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
