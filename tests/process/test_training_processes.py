"""Training in several processes and on several machines: two do the work of one."""

import json
import os
import socket
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.utilities.rank_zero import rank_zero_only
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance import lag_free_head
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.options import AcceptanceDataOptions
from specpilot.train.acceptance import train_acceptance
from specpilot.train.features import make_features
from specpilot.train.fitting import lightning_devices, of_process
from specpilot.train.options import FeatureDataOptions
from torch.multiprocessing.spawn import ProcessRaisedException

from ..helpers.launchers import JSRUN, SLURM, TORCHRUN
from ..helpers.processes import Process, command
from ..helpers.tiny import pair_and_prompts
from ..helpers.training import metrics_rows


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return acceptance data of a pair, and features of the target's own text with traces."""
    folder = tmp_path_factory.mktemp("processes")
    paths = pair_and_prompts(folder, (f"{word} {i}" for i in range(20) for word in ("one", "two")), draft_seed=3)
    make_acceptance_data(AcceptanceDataOptions(**paths, max_new_tokens=12, shard_size=8, batch_size=8), folder / "data")
    options = FeatureDataOptions(
        data=str(folder / "data"), predictor="lag-free", validation_fraction=0.3, traced=4, device="cpu"
    )
    make_features(options, folder / "features")
    return folder


@pytest.fixture
def settings(work: Path) -> lag_free_head.TrainingOptions:
    return lag_free_head.TrainingOptions(
        data=str(work / "features"), width=8, epochs=2, batch_size=37, checkpoint_every=3, log_every=2, threads=1,
        device="cpu",
    )  # fmt: skip


def assert_same_metrics(first_run: Path, second_run: Path) -> None:
    result, expected = (json.loads((run / "result.json").read_text()) for run in (second_run, first_run))
    assert result["metrics"] == pytest.approx(expected["metrics"], abs=1e-5)
    assert result["epoch"] == expected["epoch"]
    for a, b in zip(metrics_rows(first_run), metrics_rows(second_run), strict=True):
        numbers = [[float(value or np.nan) for value in row.values()] for row in (a, b)]
        np.testing.assert_allclose(*numbers, atol=1e-5)


@pytest.mark.slow
def test_two_processes_and_two_machines_do_what_one_does(
    settings: lag_free_head.TrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainings have dropout, uneven batches, and a last batch of one example.

    The two processes run in a batch job.
    """
    rows = sum(shard.rows for shard in read_manifest(settings.folders[0]).shards if shard.part.startswith("train"))
    uneven = replace(settings, batch_size=next(size for size in range(31, 100, 2) if rows % size == 1))
    train_acceptance(uneven, output=tmp_path / "one")
    with monkeypatch.context() as job:
        for name, value in {**SLURM, **TORCHRUN}.items():
            job.setenv(name, value)
        train_acceptance(replace(uneven, devices=2, strategy="ddp"), output=tmp_path / "two")
    assert_same_metrics(tmp_path / "one", tmp_path / "two")

    # Two processes that share nothing but the folders, each with the number of its machine.
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    folder, settings_file = tmp_path / "machines", tmp_path / "settings.yaml"
    settings_file.write_text(json.dumps(asdict(replace(uneven, num_nodes=2))))  # JSON is YAML
    words = ["train", "acceptance", "--predictor", "lag-free", "--config", str(settings_file), "--output", str(folder)]
    where = SLURM | {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    machines = [Process(command(*words), folder, environment=where | {"NODE_RANK": str(rank)}) for rank in range(2)]
    assert [machine.end().code for machine in machines] == [0, 0]
    assert_same_metrics(tmp_path / "one", folder)
    assert (folder / "command.txt").read_text().count("\n") == 1


@pytest.mark.parametrize("launcher", [SLURM, TORCHRUN, JSRUN], ids=["slurm", "torchrun", "jsrun"])
def test_one_process_of_a_batch_job_trains_as_outside_of_it(
    launcher: dict[str, str],
    settings: lag_free_head.TrainingOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # as Lightning sets it when it is imported in such a job
    before = dict(os.environ)
    train_acceptance(replace(settings, tensorboard=True), output=tmp_path / "run")
    assert [*(tmp_path / "run" / "tensorboard").glob("events.*")]  # which only the first of several processes writes
    assert json.loads((tmp_path / "run" / "result.json").read_text())["epoch"] in (1, 2)
    assert "epoch 2 of 2" in capsys.readouterr().out
    assert dict(os.environ) == before
    assert rank_zero_only.rank == 1


def test_settings_required_on_every_machine(
    settings: lag_free_head.TrainingOptions, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, num_nodes=2)

    def refused(words: str, **changes: str) -> None:
        with pytest.raises(InputError, match=words):
            train_acceptance(replace(settings, **changes), output=tmp_path / "run")

    variables = {"NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        refused(f"num_nodes=2: {name} is not set")
        monkeypatch.setenv(name, value)
    for rank in ("2", "-1", "first"):
        monkeypatch.setenv("NODE_RANK", rank)
        refused(f"NODE_RANK={rank}: must be a number from 0 to 1")
    monkeypatch.setenv("NODE_RANK", "0")
    refused("num_nodes=2: .* has no features; make features once", data=str(work / "data"))
    assert not (tmp_path / "run").exists()


def test_an_error_of_one_of_several_processes_is_one_line() -> None:
    text = "\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n  File …\n"
    refused = of_process(ProcessRaisedException(text + "specpilot.common.errors.InputError: loss is nan\n", 1, 2))
    assert isinstance(refused, InputError)
    assert str(refused) == "loss is nan"
    broken = ProcessRaisedException(text + "ValueError: something\n", 1, 2)
    assert of_process(broken) is broken


@pytest.mark.parametrize(
    ("device", "count", "nodes", "expected"),
    [("cuda", 1, 1, ("gpu", [0], "auto")), ("cuda:2", 3, 1, ("gpu", [2, 3, 4], "ddp_spawn")),
     ("cpu", 1, 2, ("cpu", 1, "ddp_spawn")), ("mps", 1, 1, ("mps", 1, "auto"))],
)  # fmt: skip
def test_the_devices_that_were_asked_for(device: str, count: int, nodes: int, expected: tuple[str, Any, str]) -> None:
    devices = lightning_devices(torch.device(device), count, nodes, "auto")
    assert (devices["accelerator"], devices["devices"], devices["strategy"]) == expected
