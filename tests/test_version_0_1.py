"""Files that version 0.1.0 wrote: a checkpoint, a run and a dataset of each kind, in ``tests/files/v0.1``.

They were made with ``tiny`` and ``tiny-draft`` from eight built-in prompts of 12 tokens each. ``expected.json`` is what
version 0.1.0 decoded with them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from specpilot import SpeculativeDecoder, load_controller
from specpilot import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.checkpoint import KINDS
from specpilot.controllers.length.cost_model import CostModel
from specpilot.data_gen.dataset import read_dataset, read_manifest
from specpilot.data_gen.on_policy import read_rounds
from specpilot.data_gen.router_dataset import read_router_dataset
from specpilot.train.acceptance import train_acceptance
from specpilot.train.export import export
from specpilot.train.options import (
    AcceptanceTrainingOptions,
    FeatureTrainingOptions,
    LagFreeTrainingOptions,
    RouterTrainingOptions,
)
from specpilot.train.router import train_router

FILES = Path(__file__).parent / "files" / "v0.1"
CONTROLLERS = {
    "acceptance-head": "acceptance-head",
    "lag-free-head": "lag-free-head",
    "features.json": "acceptance-features",
    "router": "router",
}
DECODED = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))
PROMPT = "SELECT name FROM users WHERE"


def decode(name: str, controller: Path) -> dict[str, object]:
    """What a controller of version 0.1 does now, in the form of ``expected.json``."""
    if name == "router":
        decoder = SpeculativeDecoder.from_pretrained("tiny", router=controller, device="cpu")
    else:
        cost = None if name == "acceptance-head" else 0.2
        decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=controller, cost=cost, device="cpu")
    found = decoder.generate(PROMPT, temperature=0, max_new_tokens=24)
    return {"tokens": found.tokens, "drafted": [len(one.drafted) for one in found.rounds], "arm": found.arm}


def test_every_kind_is_here() -> None:
    assert set(CONTROLLERS.values()) == set(KINDS) - {"copy-head"}  # which came later
    assert sum(file.stat().st_size for file in FILES.rglob("*") if file.is_file()) < 300_000


@pytest.mark.filterwarnings("ignore:the .* was trained under")
@pytest.mark.parametrize("name", DECODED)
def test_controllers_decide_as_they_did(name: str, tmp_path: Path) -> None:
    """As the files are, and written anew in today's format."""
    file = FILES / name.removesuffix(" by cost")
    assert decode(name, file) == DECODED[name]
    assert load_controller(file).config.kind == CONTROLLERS[file.name]
    assert decode(name, export(file, tmp_path / "new")) == DECODED[name]
    assert load_controller(tmp_path / "new").config == load_controller(file).config


def test_a_calibration_is_kept() -> None:
    calibration = load_controller(FILES / "acceptance-head").config.calibration
    assert calibration is not None
    assert calibration["method"] == "isotonic"


def test_a_run_is_exported(tmp_path: Path) -> None:
    """To the head that was calibrated afterwards."""
    exported, calibrated = (
        load_controller(path) for path in (export(FILES / "run", tmp_path / "c"), FILES / "acceptance-head")
    )
    assert exported.config.provenance == calibrated.config.provenance
    assert exported.config.datasets == calibrated.config.datasets
    for name, value in exported.head.state_dict().items():
        assert value.equal(calibrated.head.state_dict()[name])


def test_costs() -> None:
    assert CostModel.load(FILES / "cost.json").t_draft == pytest.approx(1.592402496132063e-4)


def test_rows_of_datasets() -> None:
    rows = read_dataset(FILES / "acceptance")
    assert (len(rows), sum(len(row.x) for row in rows)) == (8, 96)
    rounds = read_rounds(FILES / "rounds")
    assert sum(len(draft) for row in rounds for draft in row.drafted) == 69
    routed = read_router_dataset(FILES / "router-data")
    assert [len(row.embedding) for row in routed.rows] == [384] * 8
    assert [arm.name for arm in routed.arms] == ["tiny-draft", "exit:2", "autoregressive"]
    for name in ("acceptance", "rounds", "router-data"):
        assert read_manifest(FILES / name)["sampling"] == {"temperature": 1.0, "top_k": 50, "top_p": 1.0}


def test_every_controller_trains_on_them(tmp_path: Path) -> None:
    some = {"epochs": 1, "validation_fraction": 0.4, "traced": 2, "device": "cpu"}
    acceptance, rounds, routed = (str(FILES / name) for name in ("acceptance", "rounds", "router-data"))
    for options, step in (
        (AcceptanceTrainingOptions(data=acceptance, depth=0, **some), 1),
        (LagFreeTrainingOptions(data=(acceptance, rounds), width=2, **some), 1),
        (FeatureTrainingOptions(data=acceptance, batch_size=8, **some), 7),
    ):
        trained = train_acceptance(options, output=tmp_path / options.predictor)
        assert trained.step == step
        new = load_controller(export(trained.run, tmp_path / f"{options.predictor}-exported"))
        assert new.config.provenance == load_controller(FILES / "features.json").config.provenance
    del some["traced"]
    router = train_router(RouterTrainingOptions(data=routed, width=4, **some), output=tmp_path / "router")
    assert router.step == 1


def test_a_dataset_that_was_begun_is_not_continued(tmp_path: Path) -> None:
    """Its rows may come out otherwise, and it would no longer be the same bytes."""
    shutil.copytree(FILES / "acceptance", tmp_path / "data")
    words = ["data", "acceptance", "--limit", "8", "--max-new-tokens", "12", "--device", "cpu"]
    with pytest.raises(InputError, match=r"other settings \(code_version, schema_version"):
        cli.run([*words, "--output", str(tmp_path / "data")])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 9}, "schema_version=9"),
        ({"bias": "x"}, "bias='x': a finite number is expected"),
        ({"doubt": None}, "doubt=None"),
        ({"mean": 1.5}, r"mean=1\.5: must be between 0 and 1"),
        ({"origin": {}}, "provenance: key 'target' is missing"),
        ({"type": "router"}, "unknown key 'mean'"),
    ],
)
def test_a_damaged_feature_file_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps(json.loads((FILES / "features.json").read_text()) | change))
    with pytest.raises(InputError, match=words) as error:
        load_controller(file)
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)
