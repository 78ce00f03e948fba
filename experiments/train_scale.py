"""``python -m experiments train-scale``: peak memory of training by the number of examples it reads from disk.

A lag-free head is trained on random features in a separate process. The peak is given twice: resident memory, which
includes cached pages of memory-mapped files, and anonymous memory, which does not.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.console import Console
from specpilot.commands.measuring import begin, finish
from specpilot.common.options import Count, OutputFileOptions, Several
from specpilot.compare.table import Table
from specpilot.controllers.acceptance.lag_free_head import INPUTS
from specpilot.data_gen.dataset import ShardWriter
from specpilot.data_gen.feature_shards import EMBEDDING, KIND, TRAIN, VALIDATION, FeatureShard
from specpilot.train.acceptance import train_acceptance
from specpilot.train.options import LagFreeTrainingOptions

VOCABULARY = 32_000
TEXT = 128  # examples per text
SHARD = 64 * TEXT
COLUMNS = {"disk_mib": "on disk", "peak_rss_mib": "peak resident", "peak_anonymous_mib": "peak anonymous"}
INTERVAL = 0.02  # seconds between two readings


@dataclass(frozen=True, kw_only=True)
class TrainScaleBenchOptions(OutputFileOptions):
    """Benchmark.

    Attributes:
        examples: Numbers of drafted tokens to train on.
        hidden_size: Hidden size of the draft.
        width: Hidden units of the lag-free head.
        folder: Folder for temporary random features, of 2 * hidden_size bytes per example.
    """

    examples: Annotated[tuple[Count, ...], Several()] = (250_000, 500_000, 2_000_000)
    hidden_size: Count = 2048
    width: Count = 128
    folder: Path = Path("runs/train-scale")


def bench_train_scale(
    examples: Sequence[int], hidden_size: int, width: int, folder: Path, console: Console
) -> dict[str, Any]:
    """Peak memory in MiB of one epoch on each number of examples, and of validation on a tenth as many more.

    Args:
        folder: where features are written; they are removed afterwards.
    """
    found: dict[str, list[float]] = {"examples": [], **{column: [] for column in COLUMNS}}
    for count in examples:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            features = Path(name, "features")
            write_random_features(features, count, hidden_size)
            size = sum(file.stat().st_size for file in features.iterdir())
            console.print(f"{count:,} examples, {size / 2**20:,.0f} MiB on disk")
            peak = _peak_of_training(features, Path(name, "run"), width)
        values = {"examples": count, "disk_mib": size / 2**20, **peak}
        console.print(json.dumps(values))
        for key, value in values.items():
            found[key].append(value)
    return found


def write_random_features(folder: Path, examples: int, hidden_size: int) -> None:
    """Write a feature dataset of random numbers, with a validation part of a tenth as many examples.

    Raises:
        InputError: ``folder`` holds something else.
    """
    generator = torch.Generator().manual_seed(0)
    identity = {
        "kind": KIND, "target": "random", "draft": "random",
        "fingerprint": dict.fromkeys(("target", "draft", "tokenizer"), "0" * 64),
        "sampling": {"temperature": 1.0, "top_k": 50, "top_p": 1.0}, "settings": {"context": "target"},
        "datasets": ["0" * 64], "data_fingerprint": "0" * 64, "hidden_size": hidden_size, "stop_tokens": [],
    }  # fmt: skip
    with ShardWriter(folder, identity) as writer:
        embedding = torch.randn(VOCABULARY, hidden_size, generator=generator).half()
        writer.write(FeatureShard(EMBEDDING, {EMBEDDING: embedding}))
        for part, rows in ((VALIDATION, examples // 10), (f"{TRAIN}0", examples)):
            for start in range(0, rows, SHARD):
                writer.write(FeatureShard(part, _random_examples(min(SHARD, rows - start), hidden_size, generator)))
        writer.complete()


def _random_examples(rows: int, hidden_size: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    texts = -(-rows // TEXT)
    counts = torch.full((texts,), TEXT)
    counts[-1] = rows - TEXT * (texts - 1)
    tokens = torch.randint(VOCABULARY, (2, rows), generator=generator, dtype=torch.int32)
    return {
        "counts": counts,
        "states": torch.randn(rows, hidden_size, generator=generator).half(),
        "evidence": torch.randn(rows, INPUTS, generator=generator),
        "tokens": tokens[0],
        "copies": tokens[1],
        "accept": torch.rand(rows, generator=generator),
    }


def _peak_of_training(features: Path, run: Path, width: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(features, run, width, sender))
    process.start()
    sender.close()
    try:
        peak: dict[str, float] = receiver.recv()
    finally:
        process.join()
    return peak


def _train(features: Path, run: Path, width: int, sender: Connection) -> None:
    settings = LagFreeTrainingOptions(data=str(features), width=width, epochs=1, device="cpu")
    with peak_memory() as peak:
        train_acceptance(settings, output=run)
    sender.send(peak)


@contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """Yield the peaks of :func:`memory` in MiB, filled in when the block ends; NaN if the system has no ``/proc``."""
    peak = {"peak_rss_mib": 0.0, "peak_anonymous_mib": 0.0}
    done = threading.Event()

    def read() -> None:
        for key, value in memory().items():
            peak[key] = max(peak[key], value)

    def watch() -> None:
        while not done.wait(INTERVAL):
            read()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
        read()


def memory() -> dict[str, float]:
    """Resident and anonymous memory of this process in MiB."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    except OSError:
        return dict.fromkeys(("peak_rss_mib", "peak_anonymous_mib"), float("nan"))
    total, anonymous = (int(lines[name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon"))
    return {"peak_rss_mib": total, "peak_anonymous_mib": anonymous}


def as_table(result: dict[str, Any]) -> Table:
    """Space on disk and peak memory by number of examples."""
    measured = zip(*(result[key] for key in ("examples", *COLUMNS)), strict=True)
    return Table(
        "",
        [
            {"examples": f"{examples:,}"}
            | {title: f"{mib:,.0f} MiB" for title, mib in zip(COLUMNS.values(), sizes, strict=True)}
            for examples, *sizes in measured
        ],
    )


def main(options: TrainScaleBenchOptions) -> None:
    """Measure the memory of training a lag-free head, by the number of examples on disk."""
    console = begin()
    result = bench_train_scale(options.examples, options.hidden_size, options.width, options.folder, console)
    console.print(as_table(result))
    finish(result, options, options.output)
