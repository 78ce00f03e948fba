"""The stages of the pipeline, each a command of about a second on the shipped models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specpilot.common.errors import InputError

from .contents import contents
from .processes import Ended, Fault, Main, Process, run

PROMPTS = ["--limit", "16", "--shard-size", "4", "--batch-size", "4"]
FEATURES = ["--validation-fraction", "0.3", "--traced", "2"]
MIXED = [*FEATURES, "--mixings", "2"]
TRAINING = ["--epochs", "2", "--checkpoint-every", "2", "--log-every", "1", "--threads", "1", "--resume"]
GIVEN = {"data": "data acceptance", "features": "data features", "router": "data router"}  # by folder
STUDY = ["--controllers", "[a=tiny-head]", "--per-domain", "2", "--max-new-tokens", "12", "--costs", "[0.2]"]


@dataclass(frozen=True)
class Stage:
    """A command that writes one folder, and continues there when it is given again.

    Attributes:
        words: all of it but the folder.
        consumer: a command that reads the folder if it is a dataset, but for the folder that it writes.
        kept: the folder, in the stage's own, of what a run continues from.
    """

    name: str
    words: tuple[str, ...]
    consumer: tuple[str, ...] = ()
    kept: str = "checkpoints"

    def command(self, folder: Path) -> list[str]:
        """The words that write ``folder``."""
        place = ["--output", str(folder)]
        if self.words[0] == "bench":
            place = ["--folder", str(folder), "--output", str(folder / "result.json")]
        return [*self.words, "--device", "cpu", *place]

    def start(self, main: Main, folder: Path, fault: Fault | None = None) -> Process:
        return Process(main, self.command(folder), folder, fault)

    def run(self, main: Main, folder: Path, fault: Fault | None = None) -> Ended:
        return run(main, self.command(folder), folder, fault)


@dataclass(frozen=True)
class Undisturbed:
    """A run of a stage that nothing happens to: its contents, and how long it takes."""

    contents: dict[str, str]
    touches: int
    seconds: float


def undisturbed(main: Main, stage: Stage, folder: Path) -> Undisturbed:
    """Run a stage twice, each time in a new folder, and check that both have the same contents.

    Raises:
        InputError: it fails, or the contents differ.
    """
    first, second = folder / "whole", folder / "again"
    ended = _succeed(main, stage, first)
    ended = _succeed(main, stage, second)  # the first one also imports and warms caches of the disk
    found = contents(first)
    if found != contents(second):
        raise InputError(f"{stage.name}: two undisturbed runs differ; see {folder}")
    return Undisturbed(found, ended.touches, ended.seconds)


def _succeed(main: Main, stage: Stage, folder: Path) -> Ended:
    ended = stage.run(main, folder)
    if ended.code:
        raise InputError(f"{stage.name}: fails undisturbed; {ended.last_words()}")
    return ended


def make_stages(folder: Path) -> list[Stage]:
    """All stages, those that take longest first; ``folder`` has what :func:`make_given` makes."""
    data, features, router = (str(folder / name) for name in GIVEN)
    return [
        Stage("bench ablation", ("bench", "ablation", *STUDY), kept="records"),
        Stage("train acceptance", ("train", "acceptance", "--data", data, *MIXED, "--batch-size", "4", *TRAINING)),
        Stage(
            "data acceptance",
            ("data", "acceptance", *PROMPTS, "--max-new-tokens", "12"),
            ("data", "features", *MIXED, "--data"),
        ),
        Stage(
            "data router",
            ("data", "router", "--arms", "[tiny-draft,autoregressive]", *PROMPTS, "--max-new-tokens", "8"),
            ("train", "router", "--data"),
        ),
        Stage(
            "data features",
            ("data", "features", "--data", data, "--predictor", "lag-free", *FEATURES),
            ("train", "lag-free", "--data"),
        ),
        Stage("train router", ("train", "router", "--data", router, "--width", "8", "--batch-size", "4", *TRAINING)),
        Stage(
            "train lag-free", ("train", "lag-free", "--data", features, "--width", "8", "--batch-size", "40", *TRAINING)
        ),
    ]


def make_given(main: Main, folder: Path) -> None:
    """Make the datasets that some stages read.

    Raises:
        InputError: one cannot be made.
    """
    stages = {stage.name: stage for stage in make_stages(folder)}
    for name, stage in GIVEN.items():
        _succeed(main, stages[stage], folder / name)


def consume(main: Main, stage: Stage, dataset: Path, output: Path) -> Ended:
    """Have a stage's dataset read by the command that follows it."""
    words: Sequence[str] = [*stage.consumer, str(dataset), "--device", "cpu", "--output", str(output)]
    return run(main, words, output)
