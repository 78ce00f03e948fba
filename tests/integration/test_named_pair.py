"""A controller's checkpoint names its pair. Errors name the kind of a folder that is no checkpoint."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from specpilot.checkpoints import FOLDER, shipped
from specpilot.cli import main as cli
from specpilot.infer.options import DecodingOptions
from specpilot.infer.plan import with_models

HUB = "someone/nowhere-at-all"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with models and with controllers that name them, and return the folder."""
    for name in ("target", "draft", "deep/draft"):
        shutil.copytree(shipped("tiny-draft") or "", tmp_path / "models" / name)
    for name, pair in {
        "beside": ("target", "draft"), "relative": ("models/target", "models/deep/draft"), "hub": (HUB, "draft"),
        "gone": ("target", "runs/gone"),
    }.items():  # fmt: skip
        folder = shutil.copytree(FOLDER / "tiny-head", tmp_path / "models" / name)
        config = json.loads((folder / "config.json").read_text())
        config["provenance"] |= {"target": pair[0], "draft": pair[1]}
        (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text("epochs: 1\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "target", "draft"),
    [
        ({}, "tiny", "tiny-draft"),
        ({"length": "4"}, "tiny", "tiny-draft"),
        ({"length": "online-confidence", "cost": 0.2}, "tiny", "tiny-draft"),
        ({"length": "tiny-head"}, "tiny", "tiny-draft"),
        ({"length": "models/beside"}, "models/target", "models/draft"),
        ({"length": "models/relative"}, "models/target", "models/deep/draft"),
        ({"length": "models/beside", "target": "tiny"}, "tiny", "models/draft"),
        ({"length": "models/beside", "draft": None}, "models/target", None),
        ({"length": "models/hub", "target": "other"}, "other", "models/draft"),
        ({"length": "models/gone", "draft": "other+ngram"}, "models/target", "other+ngram"),
        ({"copies": "tiny-copies"}, "tiny", "ngram"),
        ({"copies": "tiny-copies", "length": "models/beside"}, "models/target", "models/draft"),
    ],
)
def test_the_pair_that_is_decoded_with(place: Path, names: dict[str, str], target: str, draft: str | None) -> None:
    options = DecodingOptions(**names)
    completed = with_models(options)
    assert asdict(completed) == asdict(replace(options, target=target, draft=draft))
    assert with_models(completed) == completed


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--length models/gone", "length='models/gone': was trained for the draft 'runs/gone', which is not found"),
        ("--length models/hub", f"length='models/hub': was trained for the target '{HUB}', which is not found"),
        ("--length run", "length='run': is the folder of a training run"),
        ("--copies run", "copies='run': is the folder of a training run"),
        ("--router run", "router='run': is the folder of a training run"),
        ("--draft run", "draft='run': is the folder of a training run"),
        ("--length data", "length='data': is a dataset"),
    ],
)
def test_what_cannot_be_used(place: Path, words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "hello", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"specpilot: error: {problem}")
