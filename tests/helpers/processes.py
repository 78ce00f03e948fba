"""Functions that run in separate processes, which are forked after all imports, with a fault at a chosen moment.

A moment is the n-th touch of a file in one folder: the process opens, creates, renames or removes the file. The moment
does not depend on the speed of the machine.
"""

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from specpilot.cli.main import main

from .thoroughness import THOROUGH

# Of tests.helpers.tiny.
MODELS = ("bloom", "falcon", "gpt2", "llama", "longt5", "mpt", "mt5", "opt", "qwen3", "t5", "umt5")
PRELOADED = [  # imported once, by the process that all others are forked from
    "specpilot.data_gen.acceptance", "specpilot.data_gen.router", "specpilot.train.acceptance",
    "specpilot.train.router", "specpilot.train.copies", "specpilot.train.draft", "specpilot.data_gen.on_policy",
    "specpilot.compare.comparison",
    "specpilot.serve.run", "specpilot.serve.round_log",
    *(f"transformers.models.{name}.modeling_{name}" for name in MODELS),
]  # fmt: skip
TOUCHES = ("open", "os.rename", "os.remove", "os.mkdir")
KILLS = 4 if THOROUGH else 2  # on the way of one piece of work
PATIENCE = 120  # seconds after which a process counts as hanging
PR_SET_PDEATHSIG = 1  # of Linux's prctl
SIGNAL, FULL, FILES = "signal", "full", "files"

Work = Callable[[], Any]


@dataclass(frozen=True)
class Fault:
    """Faults of a process.

    Attributes:
        kind: ``signal`` sends the signal ``number``; if the process was about to write, SIGKILL arrives in the middle
            of the write. ``full`` fills the disk of ``filler``; without ``filler`` no file can grow. ``files`` lets the
            process open no more files.
        at: number of the touch at which the fault happens.
        number: number of the signal.
        filler: file that takes all free space.
    """

    kind: str
    at: int = 0
    number: int = signal.SIGKILL
    filler: Path | None = None


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
        code: exit code; the negative number of a signal.
        text: the text that the process wrote to standard error.
        touches: number of touches of files of the folder.
    """

    code: int
    text: str
    touches: int
    seconds: float

    @property
    def complaint(self) -> str:
        """The one line of an error, without the program's name; empty if it wrote anything else."""
        lines = [line for line in self.text.splitlines() if line.startswith("specpilot: error: ")]
        return lines[0].removeprefix("specpilot: error: ") if len(lines) == 1 and "Traceback" not in self.text else ""


class Process:
    """A function that runs in a separate process.

    Args:
        work: the function. It returns an exit code; any other result counts as 0.
        folder: folder whose touched files are counted.
        fault: a fault of the process; None for none.
        environment: further environment variables.
    """

    def __init__(
        self, work: Work, folder: Path, fault: Fault | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._touches = context.Value("i", -1)  # until the work begins
        reader, writer = context.Pipe(duplex=False)
        arguments = (work, str(folder), fault, environment or {}, self._touches, writer)
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
        """The text that the process has written to standard error so far."""
        return self._text.decode(errors="replace")

    def running(self) -> bool:
        return self._process.is_alive()

    def send(self, number: int) -> None:
        """Send the signal ``number``, unless the process has ended."""
        if self.running():
            os.kill(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> Ended | None:
        """Wait for the process, and return its result; None if it still runs after ``seconds``."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            return None
        self._reading.join()
        return Ended(self._process.exitcode, self.text, self._touches.value, time.monotonic() - self._started)

    def end(self) -> Ended:
        """Wait for the process, and return its result. A process that hangs is killed, and its exit code is then -9."""
        ended = self.wait()
        if ended is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
            ended = self.wait()
            assert ended is not None, "SIGKILL ends every process"
        return ended


def run(work: Work, folder: Path, fault: Fault | None = None) -> Ended:
    """Run ``work`` in a separate process, and return its result."""
    return Process(work, folder, fault).end()


def command(*words: str) -> Work:
    """Return a function that runs ``specpilot`` with these arguments."""
    return partial(main, words)


def succeed(work: Work, folder: Path) -> Ended:
    ended = run(work, folder)
    assert ended.code == 0, ended
    return ended


def kill_and_resume(
    work: Callable[[Path], Any], folder: Path, check: Callable[[Path], object] = lambda folder: None
) -> None:
    """Run ``work`` in a new folder without faults, then in ``folder``, where it is killed :data:`KILLS` times.

    ``check`` is called with ``folder`` after each kill.
    """
    whole = folder.with_name(folder.name + "-whole")
    step = succeed(partial(work, whole), whole).touches // KILLS
    for turn in range(KILLS):  # at different kinds of operations
        ended = run(partial(work, folder), folder, Fault(SIGNAL, step - turn % 4))
        assert ended.code == -signal.SIGKILL, ended
        check(folder)
    succeed(partial(work, folder), folder)


def _work(work: Work, folder: str, fault: Fault | None, environment: dict[str, str], touches: Any, writer: Any) -> None:
    """In the new process: install the fault, then do the work."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the process that it was forked from
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    os.dup2(writer.fileno(), 2)
    writer.close()
    os.environ |= environment
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the background jobs of a shell ignore it

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in TOUCHES and str(arguments[0]).startswith(folder):
            touches.value += 1
            if fault is not None and touches.value == fault.at:
                _strike(fault, event, arguments)

    sys.addaudithook(hook)
    touches.value = 0
    done = work()
    sys.exit(done if isinstance(done, int) else 0)


def _strike(fault: Fault, event: str, arguments: Sequence[Any]) -> None:
    if fault.kind == SIGNAL:
        if fault.number == signal.SIGKILL and event == "open" and arguments[2] & os.O_TRUNC:
            Path(arguments[0]).write_bytes(b"{")
        os.kill(os.getpid(), fault.number)
    elif fault.kind == FILES:
        _limit(resource.RLIMIT_NOFILE)
    elif fault.kind == FULL and fault.filler is not None:
        fill(fault.filler)
    elif fault.kind == FULL:
        _limit(resource.RLIMIT_FSIZE)


def _limit(resource_number: int) -> None:
    resource.setrlimit(resource_number, (0, resource.getrlimit(resource_number)[1]))


def fill(file: Path) -> None:
    """Take all free space of a small disk."""
    with open(file, "wb", buffering=0) as out:
        try:
            while out.write(bytes(4096)):
                pass
        except OSError:
            return
