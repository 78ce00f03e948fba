"""`specpilot generate` around a decoder that is not there: what goes in, and what is printed where."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from specpilot import main as cli
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Generation, Round, Stats

TEXT = "hé 🙂\n"


class Bytes:
    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings the decoder was loaded and called with."""
    seen: list[dict[str, Any]] = []

    def generate(prompt: str, *, on_tokens: Any, **settings: Any) -> Generation:
        seen.append({"prompt": prompt, **settings})
        tokens = list(TEXT.encode())
        rounds = [Round([token, 33], [0], [token]) for token in tokens]
        for token in tokens if on_tokens else []:
            on_tokens([token])
        return Generation(
            [1],
            tokens,
            TEXT,
            "eos",
            rounds=rounds,
            stats=Stats(n_generated=len(tokens), n_target_forwards=2, seconds=1),
        )

    def from_pretrained(target: str, draft: str | None, **settings: Any) -> SimpleNamespace:
        seen.append({"target": target, "draft": draft, **settings})
        return SimpleNamespace(tokenizer=Bytes(), generate=generate, routing=None)

    monkeypatch.setattr(SpeculativeDecoder, "from_pretrained", from_pretrained)
    return seen


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_text(calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], stream: str) -> None:
    assert cli.main(["generate", stream, "a prompt", "--length", "7", "--top-k", "null", "--no-chat"]) == 0
    assert capsys.readouterr().out == TEXT + "\n"
    assert calls[0]["length"] == 7
    assert (calls[1]["prompt"], calls[1]["top_k"], calls[1]["chat"]) == ("a prompt", None, False)


@pytest.mark.parametrize("length", ["none", "cumulative-confidence:0.4", "runs/head"])
def test_rules_and_checkpoints_stay_words(calls: list[dict[str, Any]], length: str) -> None:
    assert cli.main(["generate", "a prompt", "--length", length]) == 0
    assert calls[0]["length"] == length


@pytest.mark.parametrize(
    ("words", "draft"),
    [
        ([], "tiny-draft"),
        (["--router", "r"], None),  # its own arms
        (["--router", "r", "--draft", "tiny-draft"], "tiny-draft"),  # which a router refuses: it is not ignored
        (["--router", "r", "--draft", "[a,exit:2]"], ("a", "exit:2")),
        (["--draft", "null"], None),
    ],
)
def test_drafts(calls: list[dict[str, Any]], words: list[str], draft: object) -> None:
    assert cli.main(["generate", "a prompt", *words]) == 0
    assert calls[0]["draft"] == draft


@pytest.mark.usefixtures("calls")
def test_json_and_stats(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "a prompt", "--json", "--stats"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["text"] == TEXT
    assert report["rounds"][0]["accepted"] == 1
    assert report["stats"]["block_efficiency"] == len(TEXT.encode()) / 2
    assert "tokens/s" in printed.err


@pytest.mark.usefixtures("calls")
def test_colour(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "a prompt", "--color"]) == 0
    assert "\x1b[32mh\x1b[0m\x1b[9;31m!" in capsys.readouterr().out
