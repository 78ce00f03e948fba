"""Stages whose models have moved since the data was made, and the costs by which a training compares its epochs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from specpilot.controllers.acceptance import lag_free_head
from specpilot.controllers.training_options import CopyTrainingOptions
from specpilot.train.acceptance import train_acceptance
from specpilot.train.calibration import calibrate
from specpilot.train.copies import train_copies
from specpilot.train.features import make_features
from specpilot.train.options import CalibrateOptions, FeatureDataOptions

from ..helpers.refusals import refused

DATA = Path(__file__).parents[1] / "files" / "acceptance"
SPLIT: dict[str, Any] = {"validation_fraction": 0.3, "device": "cpu"}


@pytest.fixture
def moved(tmp_path: Path) -> str:
    """Return acceptance data of the included pair that names folders which do not exist."""
    shutil.copytree(DATA, tmp_path / "data")
    manifest = tmp_path / "data" / "manifest.json"
    values = json.loads(manifest.read_text()) | {"target": "gone/target", "draft": "gone/draft"}
    manifest.write_text(json.dumps(values))
    return str(tmp_path / "data")


def test_features_of_models_that_have_moved(moved: str, tmp_path: Path) -> None:
    options = FeatureDataOptions(data=moved, predictor="lag-free", traced=2, **SPLIT)
    for replaced, missing in (({"draft": "tiny-draft"}, "target"), ({"target": "tiny"}, "draft")):
        with refused(f"gone/{missing}"):
            make_features(replace(options, **replaced), tmp_path / "features")
    make_features(replace(options, target="tiny", draft="tiny-draft"), tmp_path / "features")


def test_a_calibration_with_a_draft_that_has_moved(moved: str, tmp_path: Path) -> None:
    options = CalibrateOptions(controller="tiny-head", data=moved, output=tmp_path / "new", device="cpu")
    with refused("gone/draft"):
        calibrate(options)
    assert calibrate(replace(options, draft="tiny-draft")).judged > 0


def test_copies_of_a_target_that_has_moved(moved: str, tmp_path: Path) -> None:
    options = CopyTrainingOptions(data=moved, width=4, epochs=1, threads=1, **SPLIT)
    with refused("gone/target"):
        train_copies(options, output=tmp_path / "run")
    train_copies(replace(options, target="tiny"), output=tmp_path / "run")


def test_epochs_are_compared_by_the_costs_that_are_given(tmp_path: Path) -> None:
    make_features(FeatureDataOptions(data=str(DATA), predictor="lag-free", traced=2, **SPLIT), tmp_path / "features")
    options = lag_free_head.TrainingOptions(data=str(tmp_path / "features"), width=4, epochs=1, threads=1, device="cpu")
    speedups = [
        train_acceptance(replace(options, cost=cost), output=tmp_path / f"run-{cost}").metrics["simulated_speedup"]
        for cost in (0.01, 0.5)
    ]
    assert speedups[0] > speedups[1]
