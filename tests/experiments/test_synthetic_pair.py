"""Random pairs have the acceptance that was asked for, on texts of their own and in decoding."""

from pathlib import Path

import pytest
import torch
from specpilot.infer.decoder import SpeculativeDecoder

from experiments.__main__ import main
from experiments.synthetic_pair import Shape, measured, synthetic_pair

SMALL = {
    "layers": 6, "draft_layers": 2, "hidden": 64, "intermediate": 128, "heads": 4, "kv_heads": 2, "vocabulary": 512,
}  # fmt: skip


@pytest.mark.parametrize("acceptance", [0.5, 0.8])
def test_acceptance_is_the_chosen_one(acceptance: float) -> None:
    target, draft = synthetic_pair(Shape(**SMALL, acceptance=acceptance), torch.device("cpu"), torch.float32)
    assert measured(target, draft)["acceptance"] == pytest.approx(acceptance, abs=0.1)
    decoder = SpeculativeDecoder(target, draft, length=1)
    outputs = decoder.generate([[i + 1] for i in range(20)], max_new_tokens=40, top_k=None)
    accepted, drafted = (sum(getattr(o.stats, name) for o in outputs) for name in ("n_accepted", "n_drafted"))
    assert accepted / drafted == pytest.approx(acceptance, abs=0.1)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (SMALL | {"vocabulary": 4200}).items()]
    assert main(["synthetic-pair", *words, "--dtype", "float32", "--output", str(tmp_path)]) == 0
    decoder = SpeculativeDecoder.from_pretrained(tmp_path / "target", tmp_path / "draft", length=2, device="cpu")
    assert decoder.generate("one two", max_new_tokens=8).tokens
    assert main(["synthetic-pair", "--layers", "2", "--draft-layers", "2", "--output", str(tmp_path)]) == 2
    assert "draft_layers=2: must be fewer than the target's 2" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["gpu"]) == 2
        assert "torch sees no CUDA device" in capsys.readouterr().err
