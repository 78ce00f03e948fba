"""The small experiments, one forward or one call at a known time."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from specpilot.checkpoints import unpack
from specpilot.infer.verify.otm import optimal_transport

from experiments.__main__ import main
from experiments.otm import coin_optimum, coins, uniforms

from ..tiny import save_pair

SOLVER = 1e-6


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
    pair = ["--target", target, "--draft", draft]
    for words, key in (
        (["budgets", "--limit", "2", "--max-new-tokens", "8"], "speedup"),
        (["otm", *pair, "--output", str(tmp_path / "otm.png")], "coins"),
    ):  # fmt: skip
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])[key]


def test_rounded_weights_are_packed_and_at_most_half_a_step_off(tmp_path: Path) -> None:
    weight = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight[1] *= 100
    weight[2] = 0
    save_file({"w": weight, "norm": weight[0].clone()}, tmp_path / "model.safetensors")
    assert main(["rounding", f"--weights={tmp_path}/model.safetensors", "--share=0.5", f"--output={tmp_path}/new"]) == 0
    unpack(tmp_path / "new", tmp_path)  # in the place of what was given
    found = load_file(tmp_path / "model.safetensors")
    assert torch.equal(found["norm"], weight[0])
    for row, rounded in zip(weight.double(), found["w"].double(), strict=True):
        largest = 0.5 * row.square().mean().sqrt().item()
        step = 2.0 ** math.floor(math.log2(largest)) if largest else 1.0
        assert torch.equal(rounded, (row / step).round() * step)
