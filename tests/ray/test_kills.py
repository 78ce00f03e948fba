"""A cluster of two nodes, of which workers, nodes and the driver are killed with SIGKILL while a dataset is made."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

import pytest
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.dataset import MANIFEST, read_manifest
from specpilot.data_gen.options import AcceptanceDataOptions

from ..folders import assert_same_bytes

pytest.importorskip("ray", reason="ray is not installed (extra ray): run make test-ray")
from ray.cluster_utils import Cluster

SETTINGS = AcceptanceDataOptions(limit=48, max_new_tokens=24, shard_size=2, device="cpu")
MAKING = b"ray::Actor.make"  # title of a worker's process while it makes a shard
MARK = "SPECPILOT_TEST_CLUSTER"  # in the environment of all processes of the cluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two nodes on this machine."""
    monkeypatch.setenv(MARK, uuid4().hex)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a worker takes as many CPUs as it has threads
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


class DisturbedRun:
    """``specpilot data acceptance`` on a cluster, parts of which are killed on the way."""

    def __init__(self, settings: AcceptanceDataOptions, folder: Path, cluster: Cluster) -> None:
        self.output, self.log, self.cluster = folder / "data", folder / "log.txt", cluster
        (folder / "settings.yaml").write_text(json.dumps(asdict(settings)))  # JSON is YAML
        words = ["-m", "specpilot", "data", "acceptance", "--config", str(folder / "settings.yaml")]
        words += ["--workers", "2", "--ray", cluster.address, "--output", str(self.output)]
        self.command = [sys.executable, *words]
        self.written: dict[str, set[tuple[int, int]]] = {}  # shard → its versions, as inode and time
        self.driver = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            return subprocess.Popen(self.command, stdout=log, stderr=log)

    def shards(self) -> int:
        """Number of shards written so far."""
        if not (self.output / MANIFEST).exists():
            return 0
        entries = read_manifest(self.output)["shards"]
        for entry in entries:
            status = (self.output / entry["file"]).stat()
            self.written.setdefault(entry["file"], set()).add((status.st_ino, status.st_mtime_ns))
        return len(entries)

    def making(self) -> list[int]:
        """The cluster's workers that are making a shard."""
        mark = f"{MARK}={os.environ[MARK]}".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended
                title, environment = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
                if title.startswith(MAKING) and mark in environment.split(b"\0"):
                    found.append(int(place.name))
        return found

    def wait_for_another_shard(self) -> None:
        """Wait until there are further shards, and one is being made."""
        before = self.shards()
        while self.shards() <= before or not self.making():
            assert self.driver.poll() is None, self.log.read_text()[-2000:]
            time.sleep(0.02)

    def kill_worker(self) -> None:
        for process in self.making()[:1]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def kill_node(self) -> None:
        """Kill the node that joined last with all its processes, and let another one join."""
        self.cluster.remove_node([*self.cluster.worker_nodes][-1], allow_graceful=False)
        self.cluster.add_node(num_cpus=1)

    def kill_driver(self) -> None:
        """Kill the driver, and start it again."""
        self.driver.kill()
        self.driver.wait()
        self.driver = self.start()


@pytest.mark.timeout(900)
def test_workers_nodes_and_drivers_may_be_killed(cluster: Cluster, tmp_path: Path) -> None:
    """The dataset is finished with the same bytes, and no finished shard is made again."""
    whole = make_acceptance_data(SETTINGS, tmp_path / "whole")
    run = DisturbedRun(SETTINGS, tmp_path, cluster)
    kills: tuple[Callable[[], None], ...] = (run.kill_worker, run.kill_node, run.kill_driver)
    for kill in kills:
        run.wait_for_another_shard()
        kill()
    before = run.shards()
    assert run.driver.wait() == 0, run.log.read_text()[-2000:]
    assert run.shards() > before
    assert all(len(versions) == 1 for versions in run.written.values())
    assert_same_bytes(run.output, whole)
    assert len(read_manifest(whole)["shards"]) == 24
