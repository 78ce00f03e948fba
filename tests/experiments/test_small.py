"""The small experiments, one forward or one call at a known time."""

import json
from pathlib import Path

import pytest
import torch
from specpilot.infer.decoder import SpeculativeDecoder

from experiments.__main__ import main
from experiments.otm import coin_optimum, coins, uniforms
from experiments.synthetic_pair import Shape, measured, synthetic_pair

from ..tiny import save_pair


def test_closed_forms_of_the_paper() -> None:
    for row in uniforms():
        assert row["k_seq"] == pytest.approx(row["closed_form"]), row  # Appendix D.1: optimal there
    for row in coins():
        assert row["otm"] == pytest.approx(row["closed_form"], abs=1e-6), row  # of the solver
        assert row["k_seq"] <= row["closed_form"] + 1e-12
    assert coin_optimum(0.25, 0.25, 3) == 1


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    pair = ["--target", target, "--draft", draft]
    for words, key in (
        (["budgets", "--limit", "2"], "speedup"),
        (["otm", *pair, f"--output={tmp_path}/a.png"], "coins"),
    ):
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])[key]


SIZES = {
    "layers": 6, "draft_layers": 2, "hidden": 64, "intermediate": 128, "heads": 4, "kv_heads": 2, "vocabulary": 512,
}  # fmt: skip


@pytest.mark.parametrize("acceptance", [0.5, 0.8])
def test_synthetic_pairs_have_the_chosen_acceptance(acceptance: float) -> None:
    target, draft = synthetic_pair(Shape(**SIZES, acceptance=acceptance), torch.device("cpu"), torch.float32)
    assert measured(target, draft)["acceptance"] == pytest.approx(acceptance, abs=0.1)
    decoder = SpeculativeDecoder(target, draft, length=1)
    outputs = decoder.generate([[i + 1] for i in range(20)], max_new_tokens=40, top_k=None)
    accepted, drafted = (sum(getattr(o.stats, name) for o in outputs) for name in ("n_accepted", "n_drafted"))
    assert accepted / drafted == pytest.approx(acceptance, abs=0.1)


def test_what_cannot_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synthetic-pair", "--layers", "2", "--draft-layers", "2", "--output", str(tmp_path)]) == 2
    assert "draft_layers=2: must be fewer than the target's 2" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["gpu"]) == 2
        assert "torch sees no CUDA device" in capsys.readouterr().err
