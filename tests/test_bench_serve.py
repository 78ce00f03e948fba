"""The benchmarks of a server, in a small size: every request is answered, and bad clients do no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specpilot import main as cli


def test_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--limit", "4", "--max-new-tokens", "8", "--length", "tiny-lag-free", "--cost", "0.2"]
    out = tmp_path / "serve.json"
    load = ["--loads", "[1,3]", "--requests", "3", "--repeats", "1", "--output", str(out)]
    assert cli.main(["bench", "serve", *words, *load]) == 0
    result = json.loads(out.read_text())
    assert result["exit_codes"] == {"ours": 0, "fixed": 0, "none": 0}
    for row in result["load"].values():
        assert all(one["tokens_per_second"] > one["time_to_first_token"] for one in row.values())
        assert all(one["tokens_per_processor_second"] > 0.0 for one in row.values())
    capsys.readouterr()
    assert cli.main(["bench", "serve", *words, "--dtype", "float16", "--draft", "nowhere/none"]) == 2
