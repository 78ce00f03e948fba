"""One predictor trained on data of several sampling parameters."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from specpilot import main as cli
from specpilot.controllers.acceptance.predictor import AcceptancePredictor, PredictorConfig
from specpilot.controllers.checkpoints.checkpoint import load_controller, save_controller
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.feature_shards import TRACES, TRAIN, VALIDATION, FeatureDataset
from specpilot.infer.loading.names import load_causal_lm
from specpilot.infer.models import output_embedding
from specpilot.train.acceptance import train_acceptance
from specpilot.train.export import export
from specpilot.train.features import make_features
from specpilot.train.options import FeatureDataOptions, LagFreeTrainingOptions

SAMPLED, GREEDY = SamplingParams(1.0, 50), SamplingParams(0.0, 50)
TRACED = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Data at temperatures 1 and 0."""
    folders = [tmp_path_factory.mktemp("data") / name for name in ("sampled", "greedy")]
    for folder, temperature in zip(folders, ("1", "0"), strict=True):
        words = ["--limit", "24", "--max-new-tokens", "10", "--temperature", temperature, "--output", str(folder)]
        assert cli.main(["data", "acceptance", *words]) == 0
    return [*map(str, folders)]


def features(data: str | tuple[str, ...], traced: int, folder: Path) -> FeatureDataset:
    options = FeatureDataOptions(
        data=data, predictor="lag-free", validation_fraction=0.3, traced=traced, states="float32", device="cpu"
    )
    return FeatureDataset(make_features(options, folder))


def test_each_text_is_read_under_its_own_sampling(data: list[str], tmp_path: Path) -> None:
    """The features of both are those of each; traces are divided, the odd one to the first."""
    both = features(tuple(data), TRACED, tmp_path / "both")
    alone = [features(folder, count, tmp_path / Path(folder).name) for folder, count in zip(data, (2, 1), strict=True)]
    for part in (f"{TRAIN}0", VALIDATION):
        ours = [shard.tensors for shard in both.part(part).shards]
        theirs = [shard.tensors for dataset in alone for shard in dataset.part(part).shards]
        assert ours[0].keys() == theirs[0].keys()
        for name in ours[0]:
            column = torch.cat([shard[name] for shard in theirs])
            assert torch.equal(torch.cat([shard[name] for shard in ours]).nan_to_num(-1), column.nan_to_num(-1)), name
    traces = [shard.tensors for shard in both.part(TRACES).shards]
    expected = [shard.tensors for dataset in alone for shard in dataset.part(TRACES).shards]
    assert len(traces) == len(expected) == TRACED
    for trace, same in zip(traces, expected, strict=True):
        assert all(torch.equal(trace[name], same[name]) for name in same)
    greedy = alone[1].part(f"{TRAIN}0").shards[0].tensors["accept"]
    assert set(greedy.tolist()) == {0.0, 1.0}
    assert both.manifest["sampling"] == SAMPLED.as_dict()
    assert both.manifest["other_sampling"] == [GREEDY.as_dict()]
    assert "other_sampling" not in alone[0].manifest


def loaded(folder: Path) -> AcceptancePredictor:
    embedding = output_embedding(load_causal_lm("tiny-draft"))
    controller = load_controller(folder)
    assert isinstance(controller.config, PredictorConfig)
    return controller.config.predictor(controller.head, embedding, torch.device("cpu"), calibrated=True)


def test_the_checkpoint_names_all_of_them(data: list[str], tmp_path: Path) -> None:
    settings = LagFreeTrainingOptions(
        data=tuple(data), epochs=1, width=4, validation_fraction=0.3, traced=2, batch_size=32, device="cpu"
    )
    train_acceptance(settings, output=tmp_path / "run")
    controller = load_controller(export(tmp_path / "run", tmp_path / "controller"))
    assert controller.config.provenance.samplings == (SAMPLED, GREEDY)
    card = (tmp_path / "controller" / "README.md").read_text(encoding="utf-8")
    assert "| temperature 1.0, top-k 50, top-p 1.0; temperature 0.0, top-k 50, top-p 1.0 |" in card
    predictor = loaded(tmp_path / "controller")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sampling in (SAMPLED, GREEDY, replace(GREEDY, top_k=None)):  # at temperature 0 top-k changes nothing
            predictor.check_sampling(sampling)
    for sampling in (SamplingParams(0.5, 50), replace(SAMPLED, top_k=None)):
        with pytest.warns(UserWarning, match=r"temperature=1\.0.* and .*temperature=0\.0.*stays exact"):
            predictor.check_sampling(sampling)
    save_controller(tmp_path / "again", controller.head, controller.config)
    assert load_controller(tmp_path / "again").config == controller.config
