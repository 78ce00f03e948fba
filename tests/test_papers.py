"""The papers' tables: filed results that a run goes on from, choices of settings, no lossy row without its quality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from specpilot import main as cli
from specpilot.bench.papers.decoder_spec import AUTOREGRESSIVE, DecoderSpec
from specpilot.bench.papers.records import Record, Records, digest
from specpilot.bench.papers.report import Row, Table
from specpilot.bench.papers.runner import Runner, Runs, Studies
from specpilot.bench.papers.search import best
from specpilot.infer.decoder import SpeculativeDecoder

from .tiny import byte_tokenizer, make, save_pair

PROMPTS = [[1, 2, 3], [4, 5], [6]]
FIXED, JOINT = DecoderSpec(length="2"), DecoderSpec("mtad:0.3", "2", beams=3)


@pytest.fixture(scope="module")
def pair() -> SpeculativeDecoder:
    return SpeculativeDecoder(make(vocab=257), make(vocab=257, layers=1, seed=1), byte_tokenizer())


def lab(pair: SpeculativeDecoder, folder: Path, **more: Any) -> Runner:
    studies = Studies(dict, dict)  # nothing here trains
    return Runner(pair, PROMPTS, PROMPTS[:2], {"max_new_tokens": 8, "top_k": 10}, folder, studies, **more)


def test_a_run_goes_on_where_it_stopped(pair: SpeculativeDecoder, tmp_path: Path) -> None:
    done: list[int] = []

    def stop() -> None:
        done.append(1)
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab(pair, tmp_path, advance=stop).measure([AUTOREGRESSIVE, FIXED, JOINT])
    torn = sorted(tmp_path.iterdir())[0]
    lines = torn.read_text().splitlines(keepends=True)
    torn.write_text("".join(lines[:-1]) + lines[-1][:20])  # killed while it wrote the last line
    kept = sum(len(file.read_text().splitlines()) - 1 for file in tmp_path.iterdir()) - 1
    again: list[int] = []
    expected: list[int] = []
    runs = lab(pair, tmp_path, advance=lambda: again.append(1), expect=expected.append).measure(
        [AUTOREGRESSIVE, FIXED, JOINT]
    )
    assert len(again) == sum(expected) == 9 - kept
    whole = lab(pair, tmp_path / "whole").measure([AUTOREGRESSIVE, FIXED, JOINT])
    for spec, found in runs.items():
        assert [r.tokens for r in found.records] == [r.tokens for r in whole[spec].records]
        assert found.perplexity == whole[spec].perplexity
    assert runs[AUTOREGRESSIVE].tokens_per_forward["value"] == 1
    assert runs[AUTOREGRESSIVE].tokens_per_round == 1
    assert runs[JOINT].ratio(runs[AUTOREGRESSIVE], "target_forwards")["value"] >= 1
    assert runs[JOINT].joules_per_token is None
    third: list[int] = []
    lab(pair, tmp_path, advance=lambda: third.append(1)).measure([FIXED])
    assert third == []


def test_results_depend_on_settings_and_models(pair: SpeculativeDecoder, tmp_path: Path) -> None:
    lab(pair, tmp_path).measure([FIXED])
    for other, sampling in ((pair, {"temperature": 0.5}), (SpeculativeDecoder(*_others(), byte_tokenizer()), {})):
        again: list[int] = []
        lab(other, tmp_path, advance=lambda again=again: again.append(1)).measure([FIXED], **sampling)
        assert len(again) == 3


def _others() -> tuple[Any, Any]:
    return make(vocab=257, seed=5), make(vocab=257, layers=1, seed=6)


def test_torn_files_of_every_length(tmp_path: Path) -> None:
    record = Record(digest([1], 0), [2], 1, 0, 0, 0, 0, 0.1, -1.0, None)
    whole = Records(tmp_path / "whole", {"a": 1})
    whole.add(record)
    content = whole.path.read_text()
    for end in range(len(content) + 1):
        folder = tmp_path / str(end)
        folder.mkdir()
        (folder / whole.path.name).write_text(content[:end])
        found = Records(folder, {"a": 1})
        assert found.known == ({record.prompt: record} if end == len(content) else {})
        if not found.known:
            found.add(record)
        assert Records(folder, {"a": 1}).known == {record.prompt: record}


def runs(spec: DecoderSpec, log_p: float, forwards: int) -> Runs:
    return Runs(spec, [Record(str(i), [1] * 10, forwards, 0, 0, 0, 0, 1.0, log_p - i, None) for i in range(8)])


def test_the_fastest_of_those_that_cannot_be_told_from_the_best() -> None:
    a, b, c = (DecoderSpec(f"mtad:{tau}", "2", beams=2) for tau in (0.1, 0.5, 0.9))
    assert best({a: runs(a, -30, 2), b: runs(b, -9, 5), c: runs(c, -9, 4)}) == c  # a is fastest, and clearly worse
    assert best({a: runs(a, -9, 2), b: runs(b, -9, 5)}) == a


def test_no_lossy_row_without_its_perplexity() -> None:
    with pytest.raises(AssertionError, match="a lossy row without its perplexity"):
        Table("t", [Row({"rule": "mtad", "tokens/s": "9"}, lossy=True)], "nothing")
    table = Table("t", [Row({"rule": "mtad", "perplexity": "2"}, lossy=True), Row({"rule": "SpD"})], "nothing")
    assert "| mtad | 2 |" in table.markdown()
    assert "What differs: nothing" in table.markdown()


def test_which_contenders_are_lossy() -> None:
    lossy = [
        c.lossy for c in (FIXED, JOINT, DecoderSpec("mcss"), DecoderSpec("bild:2"), DecoderSpec("mtjd", drafts=False))
    ]
    assert lossy == [False, True, False, True, True]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    output = tmp_path / "out"
    (tmp_path / "p.txt").write_text("one\ntwo\nthree\n")
    words = f"--target {target} --draft {draft} --limit 2 --validation-limit 1 --max-new-tokens 3 --no-chat"
    words += f" --output {output} --prompts {tmp_path / 'p.txt'}"
    assert cli.main(["bench", "papers", "spectr", *words.split()]) == 0
    assert cli.main(["bench", "papers", "mtad", *words.split()]) == 0
    result = json.loads((output / "papers.json").read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert set(result) == {"spectr", "mtjd", "mtad", "made_by"}
    assert set(result["mtjd"]["perplexity"]) == set("12345")
    assert {"perplexity_change", "tokens_per_target_forward_ratio", "speed_ratio"} <= set(result["mtad"])
    assert set(result["spectr"]["block_efficiency"]["8"]) == {"1", "2", "4", "8"}
    assert result["made_by"]["mtad"]["settings"]["limit"] == 2
    for name in ("spectr", "mtad"):
        assert (output / f"papers-{name}.png").read_bytes().startswith(b"\x89PNG")
    text = (output / "papers-mtad.md").read_text()
    assert text.count("What differs:") == 5
    assert not list(output.glob("*.tmp"))


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "papers", "mtda"]) == 2
    assert "paper='mtda': choose one of specdecpp, selection, spectr, mtad, all" in capsys.readouterr().err
    assert cli.main(["bench", "papers", "selection", "--target", "elsewhere"]) == 2
    assert "made for 'tiny'; name drafts of 'elsewhere'" in capsys.readouterr().err
    prompts = tmp_path / "p.txt"
    prompts.write_text("one\ntwo\n")
    assert cli.main(["bench", "papers", "spectr", "--prompts", str(prompts), "--output", str(tmp_path / "o")]) == 2
    assert "2 prompts, but the first 60 are left out" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
