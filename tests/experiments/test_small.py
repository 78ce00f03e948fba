"""The small experiments, one forward or one call at a known time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from specpilot.controllers.length import Fixed
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Stats
from specpilot.infer.models import CausalLM
from specpilot.infer.verify import VERIFIERS
from specpilot.infer.verify.otm import optimal_transport

from experiments.__main__ import main
from experiments.otm import coin_optimum, coins, uniforms
from experiments.profile import profile

from ..clock import time_forwards
from ..tiny import make, save_pair

PROMPTS = [[1, 2, 3], [9, 8], [7] * 12]
QUIET = Console(quiet=True)
SAMPLING: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "top_k": 8, "top_p": 1.0}
SOLVER = 1e-6


def test_profile_counts_what_was_done_and_is_taken_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward of the target takes 5 s, one of the draft 1 s, a verification 2 s, and all the rest nothing."""
    decoder = SpeculativeDecoder(make(), make(layers=1), length=Fixed(4))
    clock = time_forwards(monkeypatch, lambda model, n: 5.0 if model is decoder.target else 1.0)
    plain = VERIFIERS["token-wise"]

    def verify(*arguments: Any) -> Any:
        clock.now += 2.0
        return plain(*arguments)

    monkeypatch.setitem(VERIFIERS, "token-wise", verify)
    forward = CausalLM.forward
    result = profile(decoder, PROMPTS, SAMPLING)
    assert CausalLM.forward is forward
    assert VERIFIERS["token-wise"] is verify
    stats = sum((decoder.generate(p, seed=i, **SAMPLING).stats for i, p in enumerate(PROMPTS)), Stats())
    rounds, prompts = stats.n_target_forwards, len(PROMPTS)
    seconds = {
        "target: prompts": 5.0 * prompts, "target: forwards": 5.0 * (rounds - prompts), "verification": 2.0 * rounds,
        "draft 1: prompts": 1.0 * prompts, "draft 1: forwards": 1.0 * stats.n_draft_forwards,
    }  # fmt: skip
    parts = result["parts"]
    assert result["seconds"] == pytest.approx(sum(seconds.values()))
    assert result["rest_share"] == pytest.approx(0)
    for name, expected in seconds.items():
        share = sum(part["share"] for label, part in parts.items() if label.startswith(name))
        assert share == pytest.approx(expected / result["seconds"]), name
    assert (parts["target: prompts"]["calls"], parts["verification"]["calls"]) == (prompts, rounds)
    assert parts["verification"]["microseconds"] == pytest.approx(2e6)
    assert parts["drawing tokens"]["share"] == 0


def test_closed_forms_of_the_paper() -> None:
    for row in uniforms():
        assert row["k_seq"] == pytest.approx(row["closed_form"]), row  # Appendix D.1: optimal there
    for row in coins():
        assert row["otm"] == pytest.approx(row["closed_form"], abs=SOLVER), row
        assert row["bound"] == pytest.approx(row["closed_form"]), row
        assert row["k_seq"] <= row["closed_form"] + 1e-12
    assert coin_optimum(0.25, 0.25, 3) == 1
    p = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0, 0, 0], dtype=torch.float64)
    q = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert optimal_transport(p, q, 3).acceptance == pytest.approx(1 - 0.5**3, abs=SOLVER)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\nanother\n")
    pair = ["--target", target, "--draft", draft]
    work = [*pair, "--prompts", str(prompts), "--limit", "2", "--max-new-tokens", "4"]
    for words, key in (
        (["profile", *work, "--length", "2"], "parts"),
        (["forward", *pair, "--repeats", "1"], "milliseconds"),
        (["otm", *pair, "--output", str(tmp_path / "otm.png")], "coins"),
    ):  # fmt: skip
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])[key]
