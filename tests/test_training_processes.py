"""Training and its features in processes: killed again and again they leave the same files; two do the work of one."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specpilot.common.errors import InputError
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.options import AcceptanceDataOptions
from specpilot.train import features
from specpilot.train.acceptance import train_acceptance
from specpilot.train.acceptance_module import AcceptanceModule
from specpilot.train.feature_module import FeatureModule
from specpilot.train.features import make_features
from specpilot.train.fitting import of_process
from specpilot.train.lag_free_module import LagFreeModule
from specpilot.train.options import (
    AcceptanceTrainingOptions,
    FeatureDataOptions,
    FeatureTrainingOptions,
    LagFreeTrainingOptions,
    PredictorTrainingOptions,
    RouterTrainingOptions,
)
from specpilot.train.router import train_router
from torch.multiprocessing.spawn import ProcessRaisedException

from .folders import assert_same_bytes
from .processes import Process, command, kill_and_resume
from .test_router_training import make_rows as make_router_rows
from .test_router_training import write as write_router_data
from .tiny import save_pair
from .training import assert_same_run, metrics_rows


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Acceptance data of a pair, features of the target's own text with traces, and a router's data."""
    folder = tmp_path_factory.mktemp("processes")
    target, draft = save_pair(folder, draft_seed=3)
    (folder / "p.txt").write_text("".join(f"{word} {i}\n" for i in range(20) for word in ("one", "two")))
    data = AcceptanceDataOptions(
        target=target, draft=draft, prompts=str(folder / "p.txt"), chat=False, max_new_tokens=12, shard_size=8,
        batch_size=8, device="cpu",
    )  # fmt: skip
    make_acceptance_data(data, folder / "data")
    make_features(options(folder), folder / "features")
    write_router_data(folder / "router", make_router_rows(200))
    return folder


def options(work: Path) -> FeatureDataOptions:
    return FeatureDataOptions(
        data=str(work / "data"), predictor="lag-free", validation_fraction=0.3, traced=4, device="cpu"
    )


SETTINGS: dict[str, PredictorTrainingOptions] = {
    "specdec": AcceptanceTrainingOptions(
        data="data", validation_fraction=0.3, traced=4, depth=1, mixings=2, epochs=3, batch_size=5, lr=1e-2
    ),
    "lag-free": LagFreeTrainingOptions(data="data", width=8, epochs=3, batch_size=51),
    "features": FeatureTrainingOptions(data="data", epochs=3, batch_size=51),
}


def settings_for(work: Path, predictor: str) -> PredictorTrainingOptions:
    """SpecDec++'s head makes its features in the run folder, the others read those in ``work``."""
    folder = work / ("data" if predictor == "specdec" else "features")
    every = {"checkpoint_every": 3, "log_every": 2, "threads": 1, "device": "cpu"}
    return replace(SETTINGS[predictor], data=str(folder), **every)


def make_some_features(settings: FeatureDataOptions, output: Path) -> None:
    features.SHARD_BYTES = 4000  # in a process of its own
    make_features(settings, output)


def test_killed_features_are_the_same_bytes(work: Path, tmp_path: Path) -> None:
    kill_and_resume(partial(make_some_features, options(work)), tmp_path / "f")
    assert_same_bytes(tmp_path / "f", tmp_path / "f-whole")
    assert len(read_manifest(tmp_path / "f")["shards"]) > 10


def train(settings: PredictorTrainingOptions, output: Path) -> None:
    train_acceptance(settings, output=output, resume=True)


def train_a_router(settings: RouterTrainingOptions, output: Path) -> None:
    train_router(settings, output=output, resume=True)


@pytest.mark.parametrize("predictor", ["specdec", "lag-free", pytest.param("features", marks=pytest.mark.slow)])
def test_a_killed_training_is_the_same_weights(work: Path, tmp_path: Path, predictor: str) -> None:
    kill_and_resume(partial(train, settings_for(work, predictor)), tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "run-whole")
    assert len(metrics_rows(tmp_path / "run")) > 5
    if predictor == "specdec":
        assert_same_bytes(tmp_path / "run" / "features", tmp_path / "run-whole" / "features")


@pytest.mark.parametrize(("predictor", "module"), [("lag-free", LagFreeModule), ("features", FeatureModule)])
def test_a_stop_within_an_epoch_changes_nothing(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predictor: str, module: type[AcceptanceModule]
) -> None:
    """A checkpoint every two steps; stopped after one of them, and between two."""
    settings = replace(settings_for(work, predictor), checkpoint_every=2)
    train(settings, tmp_path / "whole")
    step = module.training_step

    def stopping(*arguments: Any) -> Any:
        if next(calls) in (3, 6, 9):  # steps are counted from 1, and those after a checkpoint come again
            raise RuntimeError("stopped here")
        return step(*arguments)

    calls = iter(range(1, 100))
    monkeypatch.setattr(module, "training_step", stopping)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="stopped here"):
            train(settings, tmp_path / "run")
    train(settings, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_killed_router_is_the_same_weights(work: Path, tmp_path: Path) -> None:
    settings = RouterTrainingOptions(
        data=str(work / "router"), width=8, epochs=4, batch_size=32, checkpoint_every=2, log_every=1, device="cpu"
    )
    kill_and_resume(partial(train_a_router, settings), tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "run-whole")


def test_two_processes_do_what_one_does(work: Path, tmp_path: Path) -> None:
    """With dropout, batches that do not divide by two, and a last batch of one example."""
    settings = settings_for(work, "lag-free")
    rows = sum(s["rows"] for s in read_manifest(settings.folders[0])["shards"] if s["part"].startswith("train"))
    size = next(size for size in range(31, 100, 2) if rows % size == 1)
    ours = replace(settings, batch_size=size, epochs=2)
    one = train_acceptance(ours, output=tmp_path / "one")
    two = train_acceptance(replace(ours, devices=2, strategy="ddp"), output=tmp_path / "two")
    assert two.metrics == pytest.approx(one.metrics, abs=1e-5)
    for a, b in zip(metrics_rows(tmp_path / "one"), metrics_rows(tmp_path / "two"), strict=True):
        numbers = [[float(value or np.nan) for value in row.values()] for row in (a, b)]
        np.testing.assert_allclose(*numbers, atol=1e-5)
    assert json.loads((tmp_path / "two" / "result.json").read_text())["epoch"] == one.epoch


def test_two_machines_do_what_one_does(work: Path, tmp_path: Path) -> None:
    """Two processes that share nothing but the folders, each with the number of its machine."""
    settings = replace(settings_for(work, "lag-free"), batch_size=37, epochs=2)
    one = train_acceptance(settings, output=tmp_path / "one")
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    words = [
        "train", "acceptance", "--predictor", "lag-free", "--data", settings.data, "--width", "8",
        "--batch-size", "37", "--epochs", "2", "--checkpoint-every", "3", "--log-every", "2", "--threads", "1",
        "--device", "cpu", "--num-nodes", "2", "--output", str(tmp_path / "two"),
    ]  # fmt: skip
    where = {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    folder = tmp_path / "two"
    machines = [Process(command(*words), folder, environment=where | {"NODE_RANK": str(rank)}) for rank in range(2)]
    assert [machine.end().code for machine in machines] == [0, 0]
    two = json.loads((tmp_path / "two" / "result.json").read_text())
    assert two["metrics"] == pytest.approx(one.metrics, abs=1e-5)
    for a, b in zip(metrics_rows(tmp_path / "one"), metrics_rows(tmp_path / "two"), strict=True):
        numbers = [[float(value or np.nan) for value in row.values()] for row in (a, b)]
        np.testing.assert_allclose(*numbers, atol=1e-5)
    assert (tmp_path / "two" / "command.txt").read_text().count("\n") == 1


def test_what_every_machine_must_know(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(settings_for(work, "lag-free"), num_nodes=2)
    known = {"NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name in known:  # Lightning leaves some of them behind in a process that has trained on several devices
        monkeypatch.delenv(name, raising=False)
    for name, value in known.items():
        with pytest.raises(InputError, match=f"num_nodes=2: {name} is not set"):
            train_acceptance(settings, output=tmp_path / "run")
        monkeypatch.setenv(name, value)
    for rank in ("2", "-1", "first"):
        monkeypatch.setenv("NODE_RANK", rank)
        with pytest.raises(InputError, match=f"NODE_RANK={rank}: must be a number from 0 to 1"):
            train_acceptance(settings, output=tmp_path / "run")
    monkeypatch.setenv("NODE_RANK", "0")
    with pytest.raises(InputError, match=r"num_nodes=2: .* holds no features; make them once"):
        train_acceptance(replace(settings, data=str(work / "data")), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_error_of_one_of_several_processes_is_one_line() -> None:
    text = "\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n  File …\n"
    refused = of_process(ProcessRaisedException(text + "specpilot.common.errors.InputError: loss is nan\n", 1, 2))
    assert isinstance(refused, InputError)
    assert str(refused) == "loss is nan"
    broken = ProcessRaisedException(text + "ValueError: something\n", 1, 2)
    assert of_process(broken) is broken
