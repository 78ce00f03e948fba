"""Several workers on a cluster of this machine: the same bytes as one process, and what happens when workers fail."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.data_gen import ray_workers
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.dataset import MANIFEST, read_manifest
from specpilot.data_gen.options import AcceptanceDataOptions, RouterDataOptions, WorkerOptions
from specpilot.data_gen.router import make_router_data
from specpilot.data_gen.workers import Description, OnDone, ignore
from specpilot.train.features import make_features
from specpilot.train.options import FeatureDataOptions

from ..helpers.folders import contents
from ..helpers.tiny import pair_and_prompts

pytest.importorskip("ray", reason="ray is not installed (extra ray): run make test-ray")

TWO = WorkerOptions(workers=2)
MARK = "SPECPILOT_TEST_CLUSTER"  # in the environment of all processes of a cluster
UNITS = {index: index for index in range(6)}


@pytest.fixture(autouse=True)
def patient_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray gives a node 30 seconds to start, which a busy machine may exceed: two more attempts."""
    import ray

    init = ray.init

    def start(*arguments: Any, **options: Any) -> Any:
        for _ in range(2):
            try:
                return init(*arguments, **options)
            except Exception as error:
                if "timed out during startup" not in str(error):
                    raise
                ray.shutdown()
        return init(*arguments, **options)

    monkeypatch.setattr(ray, "init", start)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[AcceptanceDataOptions, Path]:
    folder = tmp_path_factory.mktemp("data")
    paths = pair_and_prompts(folder, (f"prompt number {i}" for i in range(24) for _ in range(i % 3 + 1)))
    options = AcceptanceDataOptions(**paths, max_new_tokens=12, batch_size=3, shard_size=4)
    return options, make_acceptance_data(options, folder / "data")


@pytest.mark.parametrize("kind", ["acceptance", "features", "router"])
def test_several_workers_make_what_one_makes(
    kind: str, data: tuple[AcceptanceDataOptions, Path], tmp_path: Path
) -> None:
    options, folder = data
    features = FeatureDataOptions(data=str(folder), validation_fraction=0.3, traced=2, device="cpu")
    router = RouterDataOptions(
        target=options.target, arms=(options.draft, "ngram", "autoregressive"), prompts=options.prompts, chat=False,
        max_new_tokens=8, shard_size=6, device="cpu",
    )  # fmt: skip
    for name, workers in (("one", WorkerOptions()), ("two", TWO)):
        if kind == "acceptance":
            make_acceptance_data(options, tmp_path / name, workers=workers)
        elif kind == "features":
            make_features(features, tmp_path / name, workers=workers)
        else:
            (make_router_data(router, tmp_path / name, workers=workers) / "times.json").unlink()  # measured
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


# Makers that note what they do in a folder, and fail there as they are told


def started_units(folder: Path) -> list[int]:
    """Return the shards that workers began to make, in order."""
    return [int(line) for line in (folder / "begun").read_text().split()]


class Maker:
    """A shard maker that squares a number; ``failure`` may raise before.

    Args:
        failure: called with the folder and the number.
    """

    def __init__(self, folder: Path, failure: Callable[[Path, int], None] | None = None) -> None:
        self.folder, self.failure = folder, failure

    def describe(self) -> Description:
        return Description({"kind": "square"})

    def make(self, unit: int, on_done: OnDone = ignore) -> int:
        with open(self.folder / "begun", "a") as file:
            file.write(f"{unit}\n")
        if self.failure is not None:
            self.failure(self.folder, unit)
        on_done(unit)
        return unit * unit


class Different(Maker):
    """A maker that describes itself differently in every process, and makes nothing until there are two."""

    def describe(self) -> Description:
        (self.folder / f"described-{os.getpid()}").touch()
        return Description({"kind": "square", "weights": os.getpid()})

    def make(self, unit: int, on_done: OnDone = ignore) -> int:
        while len([*self.folder.glob("described-*")]) < 2:
            time.sleep(0.05)  # the other worker needs the processor to start
        return unit


def first_time(folder: Path, unit: int) -> bool:
    """Return true if shard 2 is made for the first time."""
    return unit == 2 and started_units(folder).count(2) == 1


def killed_once(folder: Path, unit: int) -> None:
    if first_time(folder, unit):
        os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, unit: int) -> None:
    if unit == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def short_of_memory_once(folder: Path, unit: int) -> None:
    """Allocate more than the process may have."""
    if first_time(folder, unit):
        memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (memory + (64 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
        torch.zeros(1 << 30)


def refused(folder: Path, unit: int) -> None:
    if unit == 2:
        raise InputError("unit=2: is refused; give another")


def make_all(new_maker: Callable[[], Maker], console: Console) -> dict[int, int]:
    with ray_workers.RayWorkers(new_maker, TWO, "cpu", console) as workers:
        assert workers.description.identity["kind"] == "square"
        assert workers.ask(lambda maker: maker.folder.is_dir())
        tokens: list[int] = []
        results = dict(workers.make_all({i: partial(int, unit) for i, unit in UNITS.items()}, tokens.append))
        assert sorted(tokens) == sorted(UNITS)
        return results


@pytest.mark.parametrize("failure", [killed_once, short_of_memory_once])
def test_the_shard_of_a_failed_worker_goes_to_another_one(
    failure: Callable[[Path, int], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_all(partial(Maker, tmp_path, failure), Console(stderr=True)) == {i: i * i for i in UNITS}
    assert sorted(started_units(tmp_path)) == sorted([*UNITS, 2])  # no other shard is made twice
    assert "a worker died at shard 2, and another worker continues" in capsys.readouterr().err


def test_a_shard_that_ends_every_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "MAX_DEATHS", 2)
    with pytest.raises(InputError, match=r"workers=2: 2 workers died one after the other at shard 2; .* fewer workers"):
        make_all(partial(Maker, tmp_path, killed), Console(quiet=True))


def test_errors_of_workers_are_those_of_one_process(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^unit=2: is refused; give another$"):
        make_all(partial(Maker, tmp_path, refused), Console(quiet=True))
    options = AcceptanceDataOptions(target=str(tmp_path / "nowhere"), device="cpu")
    with pytest.raises(InputError) as single_error:
        make_acceptance_data(options, tmp_path / "data")
    with pytest.raises(InputError) as worker_error:
        make_acceptance_data(options, tmp_path / "data", workers=TWO)
    assert str(worker_error.value) == str(single_error.value)
    assert not (tmp_path / "data").exists()


def test_workers_that_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"weights: differs between the workers, \d+ and \d+"):
        make_all(partial(Different, tmp_path), Console(quiet=True))


# A cluster of two nodes, of which a worker, a node and the driver are killed while a dataset is made


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a cluster of two nodes on this machine."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv(MARK, uuid4().hex)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a worker takes as many CPUs as it has threads
    local_cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    local_cluster.add_node(num_cpus=1)
    yield local_cluster
    local_cluster.shutdown()


def making() -> list[int]:
    """Return the cluster's workers that are making a shard."""
    mark, processes = f"{MARK}={os.environ[MARK]}".encode(), []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            title, environment = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
            if title.startswith(b"ray::Actor.make") and mark in environment.split(b"\0"):
                processes.append(int(place.name))
    return processes


@pytest.mark.timeout(900)
def test_workers_nodes_and_drivers_may_be_killed(cluster: Any, tmp_path: Path) -> None:
    """The dataset is finished with the same bytes, and no finished shard is made again."""
    settings = AcceptanceDataOptions(limit=48, max_new_tokens=24, shard_size=2, device="cpu")
    whole = make_acceptance_data(settings, tmp_path / "whole")
    output, log = tmp_path / "data", tmp_path / "log.txt"
    (tmp_path / "settings.yaml").write_text(json.dumps(asdict(settings)))  # JSON is YAML
    command = [sys.executable, "-m", "specpilot", "data", "acceptance", "--config", str(tmp_path / "settings.yaml")]
    command += ["--workers", "2", "--ray", cluster.address, "--output", str(output)]
    written: dict[str, set[tuple[int, int]]] = {}  # shard → its versions, as inode and time

    def start() -> subprocess.Popen[bytes]:
        with open(log, "ab") as file:
            return subprocess.Popen(command, stdout=file, stderr=file)

    def shards() -> int:
        """Number of shards written so far."""
        entries = read_manifest(output).shards if (output / MANIFEST).exists() else []
        for entry in entries:
            status = (output / entry.file).stat()
            written.setdefault(entry.file, set()).add((status.st_ino, status.st_mtime_ns))
        return len(entries)

    driver = start()
    for kill in ("worker", "node", "driver"):
        before = shards()
        while shards() <= before or not (workers := making()):  # there are further shards, and one is being made
            assert driver.poll() is None, log.read_text()[-2000:]
            time.sleep(0.02)
        if kill == "worker":
            with suppress(ProcessLookupError):
                os.kill(workers[0], signal.SIGKILL)
        elif kill == "node":  # the one that joined last with all its processes; another one joins
            cluster.remove_node([*cluster.worker_nodes][-1], allow_graceful=False)
            cluster.add_node(num_cpus=1)
        else:
            driver.kill()
            driver.wait()
            driver = start()
    before = shards()
    assert driver.wait() == 0, log.read_text()[-2000:]
    assert shards() > before
    assert all(len(versions) == 1 for versions in written.values())
    assert contents(output) == contents(whole)
    assert len(read_manifest(whole).shards) == 24
