"""Processes that an experiment starts end with it, also when it is killed."""

import ast
import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from threading import Event

import pytest

from experiments.processes import run, started
from experiments.studies.serve_load import running

from ..helpers.processes import PATIENCE, Process
from ..helpers.server_process import wait_for_line

ROOT = Path(__file__).parents[2]
# A process that starts another one, prints both numbers, and ignores SIGTERM if it is asked to.
PARENT = """
import os, signal, subprocess, sys
if sys.argv[1:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"])
print(os.getpid(), child.pid, flush=True)
signal.pause()
"""


def _hold_two(*words: str) -> None:
    """Start a process and its child, print their numbers, and wait."""
    with started([sys.executable, "-c", PARENT, *words], stdout=PIPE, stderr=DEVNULL, text=True) as process:
        assert process.stdout is not None
        print(f"started {process.stdout.readline()}", file=sys.stderr, flush=True)
        Event().wait()


def _hold_server() -> None:
    """Start a server, print its number, and wait."""
    with running(["--target", "tiny", "--length", "none"]) as server:
        print(f"started {server.process.pid}\n", file=sys.stderr, flush=True)
        Event().wait()


@contextmanager
def watched(text: str) -> Iterator[list[int]]:
    """Open the processes whose numbers are in ``text``. Their descriptors become readable when they end."""
    with ExitStack() as stack:
        descriptors = [os.pidfd_open(int(number)) for number in text.split()]
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        yield descriptors


def have_ended(descriptors: list[int]) -> bool:
    """Wait until all processes have ended. Returns false if one of them still runs after the time limit."""
    return all(select.select([descriptor], [], [], PATIENCE)[0] for descriptor in descriptors)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_ends_a_process_and_its_child(number: signal.Signals, tmp_path: Path) -> None:
    experiment = Process(_hold_two, tmp_path)
    with watched(wait_for_line(experiment, "started (.*)\n")) as descriptors:
        experiment.send(number)
        experiment.end()
        assert have_ended(descriptors)


def test_a_killed_study_leaves_no_server(tmp_path: Path) -> None:
    experiment = Process(_hold_server, tmp_path)
    with watched(wait_for_line(experiment, "started (.*)\n")) as descriptors:
        experiment.send(signal.SIGKILL)
        experiment.end()
        assert have_ended(descriptors)


@pytest.mark.parametrize("words", [[], ["stubborn"]])
def test_the_end_of_the_block_ends_a_process_and_its_child(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.processes.PATIENCE", 0.1)
    with ExitStack() as stack:
        with started([sys.executable, "-c", PARENT, *words], stdout=PIPE, text=True) as process:
            assert process.stdout is not None
            descriptors = stack.enter_context(watched(process.stdout.readline()))
        assert process.returncode == (-signal.SIGKILL if words else -signal.SIGTERM)
        assert have_ended(descriptors)


def test_the_output_and_the_exit_code_are_those_of_the_command(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.argv[1], os.getcwd(), sys.stdin.read() == ''); sys.exit(3)"
    done = run([sys.executable, "-c", program, "two words"], cwd=tmp_path, stdout=PIPE, text=True)
    assert (done.returncode, done.stdout) == (3, f"two words {tmp_path.resolve()} True\n")


def test_experiments_start_processes_in_one_place() -> None:
    starts = re.compile(
        r"\b(?:Popen\(|subprocess\.(?:run|call|check_\w+)|os\.(?:system|fork|popen|spawn\w+)|multiprocessing)"
    )
    sources = {path: ast.unparse(ast.parse(path.read_text())) for path in (ROOT / "experiments").rglob("*.py")}
    names = [path.relative_to(ROOT).as_posix() for path, source in sources.items() if starts.search(source)]
    assert names == ["experiments/processes.py"]
