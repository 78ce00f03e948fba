"""The benchmarks of a server, in a small size: every request is answered, and bad clients do no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specpilot import main as cli


def test_loads_and_a_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--limit", "4", "--max-new-tokens", "8", "--length", "tiny-lag-free", "--cost", "0.2"]
    out = tmp_path / "serve.json"
    load = ["--loads", "[1,3]", "--requests", "3", "--repeats", "1", "--output", str(out)]
    assert cli.main(["bench", "serve", *words, *load]) == 0
    result = json.loads(out.read_text())
    assert result["greedy_texts_equal"] == {name: [3, 3] for name in ("ours", "fixed", "none")}
    assert result["exit_codes"] == {"ours": 0, "fixed": 0, "none": 0}
    for row in result["load"].values():
        assert all(one["tokens_per_second"] > one["time_to_first_token"] for one in row.values())
    out = tmp_path / "soak.json"
    assert cli.main(["bench", "soak", *words, "--requests", "60", "--output", str(out)]) == 0
    result = json.loads(out.read_text())
    assert (result["lost"], result["garbled"], result["exit_code"]) == (0, 0, 0)
    assert sum(result["clients"].values()) == 60
    assert min(result["clients"].values()) > 0
    capsys.readouterr()
    assert cli.main(["bench", "serve", *words, "--dtype", "float16", "--draft", "nowhere/none"]) == 2
