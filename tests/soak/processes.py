"""Commands in processes forked from one that has imported everything, with a fault at a chosen moment.

A moment is a number of seconds, or the n-th time that the process touches a file of one folder: opens, renames or
removes it. The second is the same on every machine.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Main = Callable[[Sequence[str]], int]
PRELOADED = [  # imported once, by the process that all others are forked from
    "tests.soak.forkserver", "specpilot.main", "specpilot.data_gen.acceptance",
    "specpilot.data_gen.router", "specpilot.train.acceptance", "specpilot.train.router", "specpilot.train.figure",
    "specpilot.compare.ablation", "specpilot.serve.run", "specpilot.serve.server", "specpilot.serve.round_log",
    "rouge_score.rouge_scorer", "pyarrow.parquet", "transformers.models.llama.modeling_llama",
]  # fmt: skip
TOUCHES = ("open", "os.rename", "os.remove", "os.mkdir")
PATIENCE = 120  # seconds after which a process counts as hanging
DAY = 86400.0
PR_SET_PDEATHSIG = 1  # of Linux's prctl
SIGNAL, FULL, FILES, CLOCK = "signal", "full", "files", "clock"


@dataclass(frozen=True)
class Fault:
    """What befalls a process.

    Attributes:
        kind: ``signal``: it gets ``number``, SIGKILL in the middle of a write if it was about to do one; ``full``: the
            disk of ``filler`` is filled, or without one no file may grow; ``files``: no file can be opened any more;
            ``clock``: from the beginning on, the clock is set back by a day whenever it is read.
        at: number of the touch at which it happens.
        number: of the signal.
        filler: file that takes all free space.
    """

    kind: str
    at: int = 0
    number: int = signal.SIGKILL
    filler: str | None = None


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
        code: exit code; the negative number of a signal.
        text: what it wrote to standard error.
        touches: how often it touched a file of the folder.
    """

    code: int
    text: str
    touches: int
    seconds: float

    def complaint(self) -> str | None:
        """The one line of an error, without the program's name; None if it wrote anything else."""
        lines = [line for line in self.text.splitlines() if line.startswith("specpilot: error: ")]
        if "Traceback" in self.text or len(lines) != 1:
            return None
        return lines[0].removeprefix("specpilot: error: ")

    def last_words(self) -> str:
        """The end of what it wrote, or all of a traceback, for a report."""
        begin = self.text.find("Traceback")
        return (
            f"exit code {self.code}: {' '.join(self.text[begin:].split())[:4000] if begin >= 0 else self.text[-300:]}"
        )


class Process:
    """A command that runs.

    Args:
        main: runs the words of a command and returns its exit code.
        folder: whose files it touches.
    """

    def __init__(self, main: Main, words: Sequence[str], folder: Path, fault: Fault | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._touches = context.Value("i", -1)  # until the command begins
        reader, writer = context.Pipe(duplex=False)
        arguments = (main, [*words], str(folder), fault, self._touches, writer)
        self._process = context.Process(target=_work, args=arguments)
        self._process.start()
        writer.close()
        self._text = bytearray()
        self._reading = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._reading.start()
        while self._touches.value < 0 and self.running():
            self._process.join(0.005)
        self._started = time.monotonic()

    def _read(self, reader: Any) -> None:
        while part := os.read(reader.fileno(), 1 << 16):
            self._text.extend(part)
        reader.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def text(self) -> str:
        """What it has written so far."""
        return self._text.decode(errors="replace")

    def running(self) -> bool:
        return self._process.is_alive()

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.running():
            os.kill(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> Ended | None:
        """The end of the process; None if it still runs after so many seconds."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            return None
        self._reading.join()
        code, seconds = self._process.exitcode, time.monotonic() - self._started
        return Ended(code, self.text, int(self._touches.value), seconds)

    def end(self) -> Ended:
        """Wait for the end; a process that hangs is killed, which its exit code then tells."""
        ended = self.wait()
        if ended is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
            ended = self.wait()
            assert ended is not None, "SIGKILL ends every process"
        return ended


def end_with_parent() -> None:
    """Let this process be killed when the one that started it ends, in whatever way."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(main: Main, words: Sequence[str], folder: Path, fault: Fault | None = None) -> Ended:
    """Run a command to its end."""
    return Process(main, words, folder, fault).end()


def _work(main: Main, words: list[str], folder: str, fault: Fault | None, touches: Any, writer: Any) -> None:
    """In the new process: install the fault, then run the command."""
    end_with_parent()
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    os.dup2(writer.fileno(), 2)
    writer.close()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the background jobs of a shell ignore it
    if fault is not None and fault.kind == CLOCK:
        _set_back()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in TOUCHES or not str(arguments[0]).startswith(folder):
            return
        touches.value += 1
        if fault is not None and touches.value == fault.at:
            _strike(fault, event, arguments)

    sys.addaudithook(hook)
    touches.value = 0
    sys.exit(main(words))


def _strike(fault: Fault, event: str, arguments: tuple[Any, ...]) -> None:
    if fault.kind == SIGNAL:
        if fault.number == signal.SIGKILL and event == "open" and arguments[2] & os.O_TRUNC:
            Path(arguments[0]).write_bytes(b"{")
        os.kill(os.getpid(), fault.number)
    elif fault.kind == FILES:
        _limit(resource.RLIMIT_NOFILE, 0)
    elif fault.filler is None:
        _limit(resource.RLIMIT_FSIZE, 0)
    else:
        fill(Path(fault.filler))


def _limit(what: int, soft: int) -> None:
    resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))


def fill(file: Path) -> None:
    """Take all free space of a small disk."""
    with open(file, "wb", buffering=0) as out:
        try:
            while out.write(bytes(4096)):
                pass
        except OSError:
            return


def _set_back() -> None:
    """Every reading of the clock is a day before the last."""
    now = [time.time()]

    def before() -> float:
        now[0] -= DAY
        return now[0]

    time.time = before
    time.time_ns = lambda: int(before() * 1e9)
