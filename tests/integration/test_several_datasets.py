"""Several datasets in every training: of one pair, and of several sampling parameters where a predictor takes them."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance import feature_model, lag_free_head
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.sampling import SamplingParams
from specpilot.controllers.training_options import RouterTrainingOptions
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.feature_shards import TRACES, TRAIN, VALIDATION, FeatureDataset
from specpilot.data_gen.kinds import AcceptanceRow
from specpilot.data_gen.options import AcceptanceDataOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models import output_embedding
from specpilot.models.loading.names import load_model
from specpilot.train.acceptance import train_acceptance
from specpilot.train.datasets import joint_manifest, router_rows
from specpilot.train.export import export
from specpilot.train.features import make_features
from specpilot.train.options import FeatureDataOptions
from specpilot.train.run_folder import read_run

from ..helpers.router_rows import make_router_rows, write_router_dataset
from ..helpers.tiny import save_pair

SAMPLED, GREEDY = SamplingParams(1.0, 50), SamplingParams(0.0, 50)
TRACED = 3
DATASETS: dict[str, dict[str, Any]] = {
    "first": {"limit": 12}, "second": {"skip": 12}, "sampled": {}, "greedy": {"temperature": 0.0},
    "other-draft": {"limit": 12}, "other-rule": {"limit": 12, "verifier": "invariant"},
}  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return acceptance data of a pair of random models, and of the target with another draft."""
    folder = tmp_path_factory.mktemp("own")
    save_pair(folder)
    save_pair(folder / "other", draft_seed=2)
    (folder / "p.txt").write_text("".join(f"prompt number {i}\n" for i in range(24)))
    for name, settings in DATASETS.items():
        base_options = {
            "target": f"{folder}/target",
            "draft": f"{folder}/draft",
            "prompts": f"{folder}/p.txt",
            "chat": False,
        }
        base_options |= {"draft": f"{folder}/other/draft"} if name == "other-draft" else {}
        make_acceptance_data(
            AcceptanceDataOptions(**base_options, max_new_tokens=10, device="cpu", **settings), folder / name
        )
    return folder


def test_two_datasets_have_the_mean_of_all_tokens(work: Path) -> None:
    datasets = [f"{work}/first", f"{work}/second"]
    manifests = [read_manifest(folder) for folder in datasets]
    assert joint_manifest(datasets[:1], AcceptanceRow.kind) == manifests[0]
    joint = joint_manifest(datasets, AcceptanceRow.kind)
    shards = [shard for manifest in manifests for shard in manifest.shards]
    mean = sum(shard.acceptance_sum for shard in shards) / sum(shard.tokens for shard in shards)
    assert joint.mean_acceptance == pytest.approx(mean)
    assert joint.dataset_fingerprint not in [manifest.dataset_fingerprint for manifest in manifests]


def test_datasets_must_be_alike(work: Path, tmp_path: Path) -> None:
    """Datasets must have one pair and rule, and for SpecDec++'s head also the same sampling parameters."""
    refused = [("specdec", "greedy", "sampling")]
    refused += [(predictor, "other-rule", "verifier") for predictor in ("specdec", "features", "lag-free")]
    refused += [(predictor, "other-draft", "fingerprint") for predictor in ("specdec", "features", "lag-free")]
    for predictor, folder, name in refused:
        words = ["train", "acceptance", "--predictor", predictor, "--data", f"[{work}/first,{work}/{folder}]"]
        with pytest.raises(InputError, match=rf"{folder}'?: {name} differs from that of .*first; give datasets"):
            cli.run([*words, "--output", str(tmp_path / "x")])
    assert list(tmp_path.iterdir()) == []


def test_a_router_on_two_datasets(tmp_path: Path) -> None:
    for name, seed in (("A", 0), ("B", 1)):
        write_router_dataset(
            tmp_path / name, [replace(row, prompt_id=f"{name}{row.prompt_id}") for row in make_router_rows(30, seed)]
        )
    words = ["train", "router", "--data", f"[{tmp_path}/A,{tmp_path}/B]", "--epochs", "1", "--device", "cpu"]
    assert cli.main([*words, "--output", str(tmp_path / "run")]) == 0
    opened = read_run(tmp_path / "run", RouterTrainingOptions)
    assert [row.prompt_id for row in router_rows(opened.settings.folders).rows][29:31] == ["Ap29", "Bp0"]


def features(data: str | tuple[str, ...], traced: int, folder: Path) -> FeatureDataset:
    options = FeatureDataOptions(
        data=data, predictor="lag-free", validation_fraction=0.3, traced=traced, states="float32", device="cpu"
    )
    return FeatureDataset(make_features(options, folder))


def test_each_text_is_read_under_its_own_sampling(work: Path, tmp_path: Path) -> None:
    """Features of both datasets equal those of each dataset. Traces are divided; the first dataset gets the odd one."""
    data = f"{work}/sampled", f"{work}/greedy"
    both = features(data, TRACED, tmp_path / "both")
    single_datasets = [
        features(folder, count, tmp_path / Path(folder).name) for folder, count in zip(data, (2, 1), strict=True)
    ]
    for part in (f"{TRAIN}0", VALIDATION):
        joint_shards = [shard.tensors for shard in both.part(part).shards]
        single_shards = [shard.tensors for dataset in single_datasets for shard in dataset.part(part).shards]
        assert joint_shards[0].keys() == single_shards[0].keys()
        for name in joint_shards[0]:
            column = torch.cat([shard[name] for shard in single_shards])
            assert torch.equal(
                torch.cat([shard[name] for shard in joint_shards]).nan_to_num(-1), column.nan_to_num(-1)
            ), name
    traces = [shard.tensors for shard in both.part(TRACES).shards]
    expected = [shard.tensors for dataset in single_datasets for shard in dataset.part(TRACES).shards]
    assert len(traces) == len(expected) == TRACED
    for trace, same in zip(traces, expected, strict=True):
        assert all(torch.equal(trace[name], same[name]) for name in same)
    greedy = single_datasets[1].part(f"{TRAIN}0").shards[0].tensors["accept"]
    assert set(greedy.tolist()) == {0.0, 1.0}
    assert both.manifest.sampling == SAMPLED
    assert both.manifest.other_sampling == [GREEDY]
    assert single_datasets[0].manifest.other_sampling == []


@pytest.mark.parametrize("rule", ["token-wise", "invariant"])
def test_the_checkpoint_names_the_rule_and_warns_of_another(rule: str, work: Path, tmp_path: Path) -> None:
    settings = feature_model.TrainingOptions(
        data=f"{work}/{'first' if rule == 'token-wise' else 'other-rule'}", validation_fraction=0.3, traced=2,
        device="cpu",
    )  # fmt: skip
    train_acceptance(settings, output=tmp_path / "run")
    folder = export(tmp_path / "run", tmp_path / "controller")
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["provenance"]["verifier"] == rule
    assert ("`invariant`" in (folder / "README.md").read_text(encoding="utf-8")) == (rule == "invariant")
    decoder = SpeculativeDecoder.from_pretrained(
        f"{work}/target", f"{work}/draft", length=str(folder), cost=0.2, device="cpu"
    )
    other = "token-wise" if rule == "invariant" else "invariant"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*verification rule")
        decoder.generate("prompt", max_new_tokens=4, verifier=other)  # stops by costs, which correct predictions
        length = decoder.load_length(str(folder), threshold=0.5)
        decoder.generate("prompt", max_new_tokens=4, length=length, verifier=rule)
        decoder.generate("prompt", max_new_tokens=4, length=length, verifier=other, temperature=0.0)
    with pytest.warns(UserWarning, match=rf"trained for the verification rule {rule}, decoding uses {other}: the outp"):
        decoder.generate("prompt", max_new_tokens=4, length=length, verifier=other)


def test_features_are_of_the_rule_of_the_data(work: Path, tmp_path: Path) -> None:
    """Labels and traces have the verification rule of the data."""
    token_wise, invariant = (features(f"{work}/{name}", 1, tmp_path / name) for name in ("first", "other-rule"))
    assert (token_wise.manifest.verifier, invariant.manifest.verifier) == ("token-wise", "invariant")
    for part in (f"{TRAIN}0", TRACES):
        first, second = (dataset.part(part).shards[0].tensors for dataset in (token_wise, invariant))
        name = "evidence" if part != TRACES else "text"
        assert torch.equal(first[name], second[name])
        assert not torch.equal(first["accept"], second["accept"])


def test_the_checkpoint_names_all_of_them(work: Path, tmp_path: Path) -> None:
    data = f"{work}/sampled", f"{work}/greedy"
    settings = lag_free_head.TrainingOptions(
        data=data, epochs=1, width=4, validation_fraction=0.3, traced=2, batch_size=32, device="cpu"
    )
    train_acceptance(settings, output=tmp_path / "run")
    controller = load_controller(export(tmp_path / "run", tmp_path / "controller"))
    assert controller.config.provenance.samplings == (SAMPLED, GREEDY)
    card = (tmp_path / "controller" / "README.md").read_text(encoding="utf-8")
    assert "| temperature 1.0, top-k 50, top-p 1.0; temperature 0.0, top-k 50, top-p 1.0 |" in card
    embedding = output_embedding(load_model(str(work / "draft")))
    assert isinstance(controller.config, lag_free_head.Config)
    predictor = controller.config.predictor(controller.head, embedding, torch.device("cpu"), calibrated=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sampling in (SAMPLED, GREEDY, replace(GREEDY, top_k=None)):  # at temperature 0 top-k changes nothing
            predictor.check_sampling(sampling)
    for sampling in (SamplingParams(0.5, 50), replace(SAMPLED, top_k=None)):
        with pytest.warns(UserWarning, match=r"temperature=1\.0.* and .*temperature=0\.0.*stays exact"):
            predictor.check_sampling(sampling)
