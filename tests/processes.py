"""Work in processes of their own that are killed at chosen moments, however fast the machine is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from specpilot.main import main

MODELS = ("bloom", "falcon", "gpt2", "llama", "longt5", "mpt", "mt5", "opt", "qwen3", "t5", "umt5")  # of tests.tiny
PRELOADED = [  # imported once, by the process that all others are forked from
    "specpilot.data_gen.acceptance", "specpilot.data_gen.router", "specpilot.train.acceptance",
    "specpilot.train.router", "specpilot.train.copies", "experiments.studies.sweep", "specpilot.serve.run",
    *(f"transformers.models.{name}.modeling_{name}" for name in MODELS),
]  # fmt: skip


def assert_same_bytes(folder: Path, other: Path) -> None:
    ours, theirs = (
        {path.relative_to(top): path for path in top.rglob("*") if path.is_file()} for top in (folder, other)
    )
    assert ours.keys() == theirs.keys()
    for name, path in ours.items():
        assert path.read_bytes() == theirs[name].read_bytes(), name


def forkserver() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def in_a_process(work: Callable[[], Any], folder: Path, die_at: int = sys.maxsize) -> int:
    """Do ``work`` in a process of its own, which gets SIGKILL when it touches a file in ``folder`` for the n-th time.

    Where it opens the file to write it anew, it is killed in the middle of that.

    Returns:
        how often it touched one; -1 if it was killed.
    """
    context = forkserver()
    touched = context.Value("i", 0)
    process = context.Process(target=_count_and_die, args=(work, str(folder), die_at, touched))
    process.start()
    process.join()
    if process.exitcode == -signal.SIGKILL:
        return -1
    assert process.exitcode == 0
    return int(touched.value)


def start_command(
    words: list[str], environment: dict[str, str] | None = None, errors: Path | None = None
) -> BaseProcess:
    """Start ``specpilot`` with ``words`` in a process of its own.

    Args:
        environment: some more variables.
        errors: the file or named pipe that is its standard error.
    """
    process = forkserver().Process(target=_command, args=(words, environment or {}, errors))
    process.start()
    return process


def kill_ten_times(
    work: Callable[[Path], Any], folder: Path, check: Callable[[Path], object] = lambda folder: None
) -> None:
    """Do ``work`` with a new folder beside ``folder``; then in ``folder``, where it is killed ten times on the way.

    ``check`` is called with ``folder`` after each time.
    """
    whole = folder.with_name(folder.name + "-whole")
    step = in_a_process(partial(work, whole), whole) // 10
    for turn in range(10):  # at different kinds of operations
        assert in_a_process(partial(work, folder), folder, step - turn % 4) == -1
        check(folder)
    assert in_a_process(partial(work, folder), folder) > 0


def _count_and_die(work: Callable[[], Any], folder: str, die_at: int, touched: Any) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "os.remove") and str(arguments[0]).startswith(folder + os.sep):
            touched.value += 1
            if touched.value == die_at:
                if event == "open" and arguments[2] & os.O_TRUNC:
                    Path(arguments[0]).write_bytes(b"{")
                os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    sys.addaudithook(hook)
    work()


def _command(words: list[str], environment: dict[str, str], errors: Path | None) -> None:
    torch.set_num_threads(1)
    os.environ |= environment
    if errors is not None:
        os.dup2(os.open(errors, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(main(words))
