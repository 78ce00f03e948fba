"""Several datasets in every training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from specpilot import main as cli
from specpilot.common.errors import InputError
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.kinds import AcceptanceRow
from specpilot.train.datasets import joint_manifest, router_rows
from specpilot.train.options import (
    RouterTrainingOptions,
    SpecDecTrainingOptions,
)
from specpilot.train.run_folder import read_run

from .test_router_training import make_rows, write
from .tiny import byte_tokenizer, make, save_pair

PROMPTS = [f"prompt number {i}" for i in range(24)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of random models, another draft, and prompts."""
    folder = tmp_path_factory.mktemp("own")
    save_pair(folder)
    make(seed=2, vocab=257, layers=1).save_pretrained(folder / "other")
    byte_tokenizer().save_pretrained(folder / "other")
    (folder / "p.txt").write_text("\n".join(PROMPTS))
    return folder


@pytest.fixture(scope="module")
def datasets(work: Path) -> list[str]:
    """Acceptance data on the first and second half of the prompts, and on-policy data."""
    words = ["--target", f"{work}/target", "--draft", f"{work}/draft", "--prompts", f"{work}/p.txt", "--no-chat"]
    words += ["--max-new-tokens", "6", "--device", "cpu", "--output"]
    halves = {"first": ["--limit", "12"], "second": ["--skip", "12"], "cold": ["--temperature", "0.5"]}
    halves["other-draft"] = ["--draft", f"{work}/other", "--limit", "12"]
    for name, half in halves.items():
        assert cli.main(["data", "acceptance", *words, f"{work}/{name}", *half]) == 0
    return [f"{work}/first", f"{work}/second"]


def test_a_head_on_two_datasets(datasets: list[str], work: Path, tmp_path: Path) -> None:
    words = ["train", "acceptance", "--data", f"[{','.join(datasets)}]", "--epochs", "1", "--depth", "0", "--output"]
    words += [str(tmp_path / "run"), "--validation-fraction", "0.3", "--device", "cpu"]
    assert cli.main(words) == 0
    manifests = [read_manifest(folder) for folder in datasets]
    assert joint_manifest(datasets[:1], AcceptanceRow.kind) == manifests[0]
    joint = joint_manifest(datasets, AcceptanceRow.kind)
    shards = [shard for manifest in manifests for shard in manifest["shards"]]
    mean = sum(shard["acceptance_sum"] for shard in shards) / sum(shard["tokens"] for shard in shards)
    assert joint["mean_acceptance"] == pytest.approx(mean)
    assert joint["dataset_fingerprint"] not in [manifest["dataset_fingerprint"] for manifest in manifests]
    opened = read_run(tmp_path / "run", SpecDecTrainingOptions)
    assert opened.settings.folders == tuple(datasets)
    assert opened.dataset["dataset_fingerprint"] == joint["dataset_fingerprint"]
    assert cli.main([*words, "--data", datasets[0], "--resume"]) == 2  # other data
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "head")]) == 0


def test_datasets_must_be_alike(datasets: list[str], work: Path, tmp_path: Path) -> None:
    """Of one pair for every predictor, and of the same sampling parameters for SpecDec++'s head."""
    refused = [("specdec", "cold", "sampling")]
    refused += [(predictor, "other-draft", "fingerprint") for predictor in ("specdec", "features", "lag-free")]
    for predictor, folder, name in refused:
        words = ["train", "acceptance", "--predictor", predictor, "--data", f"[{datasets[0]},{work}/{folder}]"]
        with pytest.raises(InputError, match=rf"{folder}: {name} differs from that of .*first; give datasets that ag"):
            cli.run([*words, "--output", str(tmp_path / "x")])
    assert list(tmp_path.iterdir()) == []


def test_a_router_on_two_datasets(tmp_path: Path) -> None:
    for name, seed in (("A", 0), ("B", 1)):
        write(tmp_path / name, [replace(row, prompt_id=f"{name}{row.prompt_id}") for row in make_rows(30, seed)])
    words = ["train", "router", "--data", f"[{tmp_path}/A,{tmp_path}/B]", "--epochs", "1", "--device", "cpu"]
    assert cli.main([*words, "--output", str(tmp_path / "run")]) == 0
    opened = read_run(tmp_path / "run", RouterTrainingOptions)
    assert [row.prompt_id for row in router_rows(opened.settings.folders).rows][29:31] == ["Ap29", "Bp0"]
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "router")]) == 0
