"""The stages of the pipeline, each a command of about a second on the shipped models; small disks for them."""

import ctypes
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from filelock import FileLock

from .folders import contents
from .processes import Ended, Fault, Process, Work, command, succeed

PROMPTS = ("--limit", "16", "--shard-size", "4", "--batch-size", "4")
FEATURES = ("--validation-fraction", "0.3", "--traced", "2")
MIXED = (*FEATURES, "--mixings", "2")
TRAINING = ("--epochs", "2", "--checkpoint-every", "2", "--log-every", "1", "--threads", "1", "--resume")
DRAFT = (
    "train", "draft", "--vocabulary", "200", "--window", "32", "--batch-size", "4",
    "--validation-fraction", "0.3", *TRAINING,
)  # fmt: skip
ROUTER_DATA = ("data", "router", "--arms", "[tiny-draft,autoregressive]", *PROMPTS, "--max-new-tokens", "4")


@dataclass(frozen=True)
class Stage:
    """A command that writes one folder. The same command continues an unfinished folder.

    Attributes:
        words: the command without its folders.
        reads: the stage whose dataset the command reads.
    """

    words: tuple[str, ...]
    reads: str | None = None


STAGES = {
    "data acceptance": Stage(("data", "acceptance", *PROMPTS, "--max-new-tokens", "12")),
    "data features": Stage(("data", "features", "--predictor", "lag-free", *FEATURES), "data acceptance"),
    "data router": Stage(ROUTER_DATA),
    "train acceptance": Stage(
        ("train", "acceptance", "--predictor", "specdec", *MIXED, "--batch-size", "4", *TRAINING), "data acceptance"
    ),
    "train lag-free": Stage(("train", "acceptance", "--width", "8", "--batch-size", "40", *TRAINING), "data features"),
    "train router": Stage(("train", "router", "--width", "8", "--batch-size", "4", *TRAINING), "data router"),
    "train features": Stage(
        ("train", "acceptance", "--predictor", "features", *FEATURES, "--batch-size", "40", *TRAINING),
        "data acceptance",
    ),
    "data answers": Stage(("data", "answers", *PROMPTS, "--max-new-tokens", "12")),
    "data on-policy": Stage(("data", "on-policy", *PROMPTS, "--max-new-tokens", "12", "--length", "5")),
    "train copies": Stage(
        ("train", "copies", "--width", "8", "--batch-size", "20", "--validation-fraction", "0.3", *TRAINING),
        "data answers",
    ),
    "train draft": Stage((*DRAFT, "--layers", "1"), "data answers"),
    "train draft, stored states": Stage((*DRAFT, "--features", "target", "--cache-states"), "data answers"),
}  # fmt: skip


@dataclass(frozen=True)
class Undisturbed:
    """A run of a stage without faults: its folder, the digests of its files, and its duration."""

    folder: Path
    contents: dict[str, str]
    touches: int
    seconds: float


class Stages:
    """All stages; an undisturbed run is made when the first test needs it.

    ``folder`` holds these runs. Several processes that run tests may share it: one of them makes each run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def work(self, name: str, output: Path) -> Work:
        """The stage's command, which writes ``output``."""
        stage = STAGES[name]
        data_flags = () if stage.reads is None else ("--data", str(self.undisturbed(stage.reads).folder))
        return command(*stage.words, *data_flags, "--device", "cpu", "--output", str(output))

    def start(self, name: str, output: Path, fault: Fault | None = None) -> Process:
        return Process(self.work(name, output), output, fault)

    def run(self, name: str, output: Path, fault: Fault | None = None) -> Ended:
        return self.start(name, output, fault).end()

    @cache  # noqa: B019 - there is one object in a session
    def undisturbed(self, name: str) -> Undisturbed:
        """Return the stage's run without faults. Every other finished run must have the same files."""
        folder, record = self.folder / name, self.folder / f"{name}.json"
        work = self.work(name, folder)
        with FileLock(record.with_suffix(".lock")):
            if not record.exists():
                ended = succeed(work, folder)
                record.write_text(json.dumps([ended.touches, ended.seconds]))
        return Undisturbed(folder, contents(folder), *json.loads(record.read_text()))

    def finish(self, name: str, output: Path) -> None:
        """Run the stage without further faults, and check that its files are those of an undisturbed run."""
        ended = self.run(name, output)
        assert ended.code == 0, ended
        assert contents(output) == self.undisturbed(name).contents


CLONE_NEWNS = 0x00020000  # of Linux's unshare
SIZE = "128m"  # of the disk; the largest stages, trainings of a draft, write more than 32 MiB


def own_mounts() -> None:
    """If this process may mount, hide its mounts from all processes except its children."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0:
        _mount("--make-rprivate", "/")


@contextmanager
def disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk at the new folder ``folder``; yield whether the process may mount."""
    folder.mkdir()
    mounted = _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder))
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*words: str) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *words], check=False, capture_output=True).returncode == 0
