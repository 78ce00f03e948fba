"""The papers' tables, by the command."""

import json
from pathlib import Path

import pytest

from experiments.__main__ import main

from ..tiny import save_pair


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    output = tmp_path / "out"
    (tmp_path / "p.txt").write_text("one\ntwo\nthree\n")
    words = f"--target {target} --draft {draft} --limit 2 --validation-limit 1 --max-new-tokens 3 --no-chat"
    words += f" --output {output} --prompts {tmp_path / 'p.txt'}"
    assert main(["papers", "spectr", *words.split()]) == 0
    assert main(["papers", "mtad", *words.split()]) == 0
    result = json.loads((output / "papers.json").read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert set(result) == {"spectr", "mtjd", "mtad", "made_by"}
    assert {"perplexity_change", "tokens_per_target_forward_ratio", "speed_ratio"} <= set(result["mtad"])
    assert set(result["spectr"]["block_efficiency"]["k-seq"]["8"]) == {"1", "2", "4", "8"}
    assert result["made_by"]["mtad"]["settings"]["limit"] == 2
    for name in ("spectr", "mtad"):
        assert (output / f"papers-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "papers-mtad.md").read_text().count("What differs:") == 5
