"""The papers' tables: filed results that a run goes on from, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from specpilot.compare.energy import Meter
from specpilot.compare.store import Store
from specpilot.infer.decoder import SpeculativeDecoder

from experiments.__main__ import main
from experiments.papers.runner import AUTOREGRESSIVE, DecoderSpec, PapersOptions, Runner

from ..tiny import byte_tokenizer, make, save_pair

PROMPTS = [[1, 2, 3], [4, 5], [6]]
FIXED, JOINT = DecoderSpec(length="2"), DecoderSpec("mtad:0.3", "2", beams=3)


@pytest.fixture(scope="module")
def pair() -> SpeculativeDecoder:
    return SpeculativeDecoder(make(vocab=257), make(vocab=257, layers=1, seed=1), byte_tokenizer())


@contextmanager
def runner(pair: SpeculativeDecoder, folder: Path, meter: Meter | None = None) -> Iterator[Runner]:
    work = PapersOptions(max_new_tokens=8, top_k=10, top_p=1.0)
    with Store(folder) as store:
        yield Runner(pair, PROMPTS, PROMPTS[:2], work, store, Console(quiet=True), meter or Meter())


class Counting(Meter):
    """Counts the generations that are measured, and interrupts one."""

    def __init__(self, stop: int = 0) -> None:
        super().__init__()
        self.measured, self.stop = 0, stop

    def begin(self) -> None:
        self.measured += 1
        if self.measured == self.stop:
            raise KeyboardInterrupt


def test_an_interrupted_run_continues(pair: SpeculativeDecoder, tmp_path: Path) -> None:
    specs = [AUTOREGRESSIVE, FIXED, JOINT]
    with runner(pair, tmp_path / "cut", Counting(stop=5)) as cut, pytest.raises(KeyboardInterrupt):
        cut.measure(specs)
    meter = Counting()
    with runner(pair, tmp_path / "cut", meter) as again:
        found = again.measure(specs)
        assert meter.measured == 9 - 4
        again.measure(specs)
        assert meter.measured == 9 - 4
    with runner(pair, tmp_path / "whole") as uncut:
        whole = uncut.measure(specs)
    for spec, runs in found.items():
        assert [r.tokens for r in runs.records] == [r.tokens for r in whole[spec].records]
        assert runs.perplexity == whole[spec].perplexity
    assert found[AUTOREGRESSIVE].tokens_per_forward["value"] == 1
    assert found[AUTOREGRESSIVE].tokens_per_round == 1
    assert found[JOINT].ratio(found[AUTOREGRESSIVE], "target_forwards")["value"] >= 1
    assert found[JOINT].joules_per_token is None


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
    assert set(result["mtjd"]["perplexity"]) == set("12345")
    assert {"perplexity_change", "tokens_per_target_forward_ratio", "speed_ratio"} <= set(result["mtad"])
    assert result["spectr"]["block_efficiency"].keys() == {"k-seq", "spec-infer", "mcss"}
    assert set(result["spectr"]["block_efficiency"]["k-seq"]["8"]) == {"1", "2", "4", "8"}
    assert result["made_by"]["mtad"]["settings"]["limit"] == 2
    for name in ("spectr", "mtad"):
        assert (output / f"papers-{name}.png").read_bytes().startswith(b"\x89PNG")
    text = (output / "papers-mtad.md").read_text()
    assert text.count("What differs:") == 5
    assert not list(output.glob("*.tmp"))
