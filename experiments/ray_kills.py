"""Data generation on a Ray cluster: its rate by number of workers, and what kills do to it.

The same dataset is made by one process and on a cluster of two nodes, of which workers, nodes and the driver are killed
with SIGKILL at points spread over the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from specpilot.commands.measuring import begin, finish
from specpilot.common.errors import InputError, optional_import
from specpilot.common.options import Count, Natural, OutputFileOptions
from specpilot.compare.table import Table
from specpilot.data_gen.acceptance import AcceptanceDatasetBuilder, make_acceptance_data
from specpilot.data_gen.builder import encode_prompts
from specpilot.data_gen.dataset import MANIFEST, read_manifest
from specpilot.data_gen.options import AcceptanceDataOptions, WorkerOptions
from specpilot.data_gen.workers import open_workers
from specpilot.infer.options import Device

from .ray_cluster import Cluster, cluster, kill, wait_until

WORKERS = (1, 2)
MAKING = "ray::Actor.make"  # title of a worker's process while it makes a shard


@dataclass(frozen=True, kw_only=True)
class RayBenchOptions(AcceptanceDataOptions, OutputFileOptions):
    """Benchmark.

    Attributes:
        rounds: Number of times that a worker, a node and the driver are killed, each with SIGKILL.
    """

    rounds: Natural = 3
    limit: Count | None = 96
    max_new_tokens: Count = 48
    shard_size: Count = 3
    device: Device = "cpu"


def bench_ray(options: RayBenchOptions, console: Console) -> dict[str, Any]:
    """Measure rates, then make the dataset under kills, and compare it with that of one process.

    Raises:
        InputError: Ray is not installed, or the driver ended with an error.
    """
    with optional_import("ray"):
        import ray  # noqa: F401
    names = [field.name for field in fields(AcceptanceDataOptions)]
    settings = AcceptanceDataOptions(**{name: getattr(options, name) for name in names})
    rates = {str(count): rows_per_second(settings, count, console) for count in WORKERS}
    return {"rows_per_second": rates, **make_under_kills(settings, options.rounds, console)}


def make_under_kills(settings: AcceptanceDataOptions, rounds: int, console: Console) -> dict[str, Any]:
    """Make a dataset in one process and, with ``rounds`` kills of every kind, on a cluster of two nodes.

    Raises:
        InputError: Ray does not start, or the driver ended with an error.
    """
    with tempfile.TemporaryDirectory() as place:
        whole = make_acceptance_data(settings, Path(place) / "whole", console)
        with cluster([torch.get_num_threads()] * 2) as nodes:
            run = DisturbedRun(settings, Path(place), nodes, console)
            run.go(rounds)
        return {
            "rows": sum(shard["rows"] for shard in read_manifest(whole)["shards"]),
            "shards": len(read_manifest(whole)["shards"]),
            "bytes_identical": contents(whole) == contents(run.output),
            "kills": run.kills,
            "kills_survived": run.survived,
            "shards_written_twice": run.written_twice(),
            "network_namespaces": nodes.bridge is not None,
        }


def rows_per_second(settings: AcceptanceDataOptions, count: int, console: Console) -> float:
    """Rows per second of ``count`` workers on this machine, once all have loaded their models."""
    new_maker = partial(AcceptanceDatasetBuilder, settings)
    with open_workers(new_maker, WorkerOptions(workers=count), settings.device, console) as workers:
        prompts = encode_prompts(settings, workers.description)
        shards = dict(enumerate(prompts.shards(settings.shard_size)))
        for _ in range(2):  # the first time, workers are started
            started = time.perf_counter()
            rows = sum(len(shard.rows) for _, shard in workers.make_all(shards))
            seconds = time.perf_counter() - started
    console.print(f"{count} workers: {rows / seconds:.1f} rows/s")
    return rows / seconds


class DisturbedRun:
    """Makes a dataset by ``specpilot data acceptance`` on a cluster, and kills parts of it on the way.

    Attributes:
        kills: number of kills so far.
        survived: number of kills after which further shards were written.
    """

    def __init__(self, settings: AcceptanceDataOptions, folder: Path, nodes: Cluster, console: Console) -> None:
        self.output, self.log, self.nodes, self.console = folder / "data", folder / "log.txt", nodes, console
        (folder / "settings.yaml").write_text(json.dumps(asdict(settings)))  # JSON is YAML
        command = ["-m", "specpilot", "data", "acceptance", "--config", str(folder / "settings.yaml")]
        on_cluster = ["--workers", "2", "--ray", nodes.address, "--output", str(self.output)]
        self.command = nodes.head.command([sys.executable, *command, *on_cluster])
        self.kills = self.survived = 0
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

    def has_written_more_than(self, before: int) -> bool:
        """Whether there are further shards, and one is being made."""
        return self.shards() > before and bool(self.making())

    def written_twice(self) -> int:
        """Number of finished shards that were written again."""
        return sum(len(versions) > 1 for versions in self.written.values())

    def go(self, rounds: int) -> None:
        """Finish the dataset with ``rounds`` kills of every kind.

        Raises:
            InputError: the driver ended with an error, or before the last kill.
        """
        for name, action in rounds * [*self.actions().items()]:
            further = partial(self.has_written_more_than, self.shards())
            if not wait_until(further, self.driver):
                raise InputError(f"rounds={rounds}: ended after {self.kills} kills, give more prompts: {self.last()}")
            self.survived += self.kills > 0
            self.console.print(f"{self.shards()} shards are written; killing a {name}")
            action()
            self.kills += 1
        before = self.shards()
        if self.driver.wait():
            raise InputError(f"the driver ended with exit code {self.driver.returncode}: {self.last()}")
        self.survived += self.kills > 0 and self.shards() > before

    def making(self) -> list[int]:
        """The workers that are making a shard."""
        return [process for node in self.nodes.nodes for process in node.processes(MAKING)]

    def actions(self) -> dict[str, Callable[[], None]]:
        """What is killed, and how."""
        return {"worker": self.kill_worker, "node": self.kill_node, "driver": self.kill_driver}

    def kill_worker(self) -> None:
        for process in self.making()[:1]:
            kill(process)

    def kill_node(self) -> None:
        """Kill all processes of the last node that joined, and let another one join."""
        self.nodes.nodes[-1].kill()
        self.nodes.add(torch.get_num_threads())

    def kill_driver(self) -> None:
        """Kill the driver, and start it again."""
        self.driver.kill()
        self.driver.wait()
        self.driver = self.start()

    def last(self) -> str:
        """The last words of the driver."""
        return " ".join(self.log.read_text().split())[-300:]


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rates_by_workers(result: Mapping[str, Any]) -> Table:
    """Rows a second by number of workers."""
    rates = result["rows_per_second"].items()
    return Table("", [{"workers": count, "rows per second": f"{rate:.1f}"} for count, rate in rates])


def main(options: RayBenchOptions) -> None:
    """Make data on a Ray cluster of two nodes while workers, nodes and the driver are killed; compare the bytes."""
    finish(bench_ray(options, begin()), options, options.output)
