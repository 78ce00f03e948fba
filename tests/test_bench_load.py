"""Batches, memory and the profile of the decoder, on a random pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from specpilot.bench.micro.memory import bench_memory
from specpilot.bench.micro.profile import profile
from specpilot.bench.workloads.batch import LENGTHS, SIZES, bench_batch
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.models import CausalLM
from specpilot.infer.verify import VERIFIERS
from specpilot.main import main

from .tiny import make, save_pair

PROMPTS = [[1, 2, 3], [9, 8], [7] * 12]
SAMPLING = {"max_new_tokens": 12, "temperature": 1.0, "top_k": 8, "top_p": 1.0}


def test_batches_of_all_sizes() -> None:
    decoder = SpeculativeDecoder(make(), make(layers=1))
    rates = bench_batch(decoder, PROMPTS, SAMPLING, 1, Console(quiet=True))["tokens_per_second"]
    assert {int(name.removeprefix("fixed-")) for name in rates} == set(LENGTHS)
    assert all(
        {int(size) for size in by_size} == set(SIZES) and min(by_size.values()) > 0 for by_size in rates.values()
    )


def test_requests_leave_nothing_behind() -> None:
    decoder = SpeculativeDecoder(make(), make(layers=1))
    readings = bench_memory(decoder, PROMPTS, SAMPLING, 300, Console(quiet=True))["readings"]
    assert [reading["requests"] // 100 for reading in readings] == [1, 2, 3]  # a list may pass the hundred
    assert len({reading["tensors"] for reading in readings}) == 1


def test_profile_adds_up_and_is_taken_off_again() -> None:
    decoder = SpeculativeDecoder(make(), make(layers=1))
    before, verify = CausalLM.forward, VERIFIERS["token-wise"]
    result = profile(decoder, PROMPTS, SAMPLING)
    assert sum(part["share"] for part in result["parts"].values()) + result["rest_share"] == pytest.approx(1)
    assert {
        "target: prompts",
        "target: forwards of 5",
        "draft 1: forwards of 1",
        "verification",
        "drawing tokens",
    } <= result["parts"].keys()
    assert 0 < result["rest_share"] < 1
    assert CausalLM.forward is before
    assert VERIFIERS["token-wise"] is verify


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\nanother\n")
    words = ["--target", target, "--draft", draft, "--limit", "2", "--max-new-tokens", "4", "--prompts", str(prompts)]
    for command, more, key in (
        ("batch", ["--repeats", "1"], "tokens_per_second"),
        ("memory", ["--requests", "100"], "readings"),
        ("profile", ["--length", "2"], "parts"),
        ("spectr", [], "block_efficiency"),
    ):
        assert main(["bench", command, *words, *more]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result[key]
        assert result["settings"]["limit"] == 2
    assert main(["bench", "memory", *words, "--requests", "0"]) == 2
    assert "requests=0: must be at least 1" in capsys.readouterr().err
    assert main(["bench", "batch", "--limit", "0"]) == 2
    assert "limit=0: must be at least 1" in capsys.readouterr().err
