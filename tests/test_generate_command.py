"""`specpilot generate` on the shipped pair: what the options mean, and what is printed where."""

from __future__ import annotations

import json
import re

import pytest
from specpilot import main as cli
from specpilot.infer.decoder import SpeculativeDecoder

PROMPT = "What is 3 and 4?"
WORDS = ["generate", PROMPT, "--target", "tiny", "--draft", "tiny-draft", "--max-new-tokens", "24", "--seed", "5"]


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=4)


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_text(decoder: SpeculativeDecoder, capsys: pytest.CaptureFixture[str], stream: str) -> None:
    assert cli.main([*WORDS, stream, "--length", "4", "--top-k", "null", "--no-chat"]) == 0
    expected = decoder.generate(PROMPT, max_new_tokens=24, seed=5, top_k=None, chat=False)
    assert capsys.readouterr().out == expected.text + "\n"


@pytest.mark.parametrize("length", ["4", "none", "cumulative-confidence:0.4", "tiny-head"])
def test_json_and_stats(decoder: SpeculativeDecoder, capsys: pytest.CaptureFixture[str], length: str) -> None:
    assert cli.main([*WORDS, "--length", length, "--temperature", "0.7", "--chat", "--json", "--stats"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    expected = decoder.generate(PROMPT, max_new_tokens=24, seed=5, temperature=0.7, chat=True, length=length)
    stats = expected.stats
    assert (report["text"], report["tokens"]) == (expected.text, expected.tokens)
    assert report["finish_reason"] == expected.finish_reason
    assert [r["emitted"] for r in report["rounds"]] == [r.emitted for r in expected.rounds]
    assert [r["drafted"] for r in report["rounds"]] == [r.drafted for r in expected.rounds]
    assert report["stats"]["block_efficiency"] == stats.block_efficiency
    line = printed.err.splitlines()[-1]
    assert line.startswith(f"{stats.n_generated} tokens in ")
    assert f"{stats.n_draft_forwards} draft and {stats.n_target_forwards} target forwards" in line
    assert f"{stats.n_accepted} of {stats.n_drafted} drafted tokens accepted" in line


def test_colour(decoder: SpeculativeDecoder, capsys: pytest.CaptureFixture[str]) -> None:
    """Without what is struck out, and without the styles, it is the text."""
    assert cli.main([*WORDS, "--length", "4", "--no-chat", "--color"]) == 0
    expected = decoder.generate(PROMPT, max_new_tokens=24, seed=5, chat=False)
    assert 0 < expected.stats.n_accepted < expected.stats.n_drafted
    text, legend = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    accepted = [token for r in expected.rounds for token in r.emitted[: r.accepted]]
    assert decoder.tokenizer is not None
    green = "".join(re.findall(r"\x1b\[32m(.*?)\x1b\[0m", text))
    assert green == decoder.tokenizer.decode(accepted, skip_special_tokens=True).replace("\n", "")
    left = re.sub(r"\x1b\[9;31m.*?\x1b\[0m", "", text)
    assert len(left) < len(text)
    assert re.sub(r"\x1b\[[\d;]*m", "", left) == expected.text
    assert re.sub(r"\x1b\[[\d;]*m", "", legend) == "accepted draft  the target's own  rejected draft"
