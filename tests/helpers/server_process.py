"""`specpilot serve` as a process."""

import re
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from .processes import PATIENCE, Process, Work, command

WORDS = ["serve", "--length", "tiny-lag-free", "--cost", "0.2", "--port", "0"]


def _within(files: int, work: Work) -> object:
    """Run ``work`` in a process that may open at most ``files`` files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    return work()


@contextmanager
def server_process(folder: Path, *words: str, files: int | None = None) -> Iterator[tuple[Process, str]]:
    """Start a server in a separate process, and yield the server and its address.

    Args:
        files: number of files and connections that the process may open.
    """
    work = command(*WORDS, *words)
    server = Process(work if files is None else partial(_within, files, work), folder)
    try:
        yield server, wait_for_line(server, r"on (http://\S+)")
    finally:
        server.send(signal.SIGKILL)
        server.end()


def wait_for_line(server: Process, pattern: str) -> str:
    """Wait for a line of the server's standard error that matches ``pattern``, and return the pattern's group."""
    end = time.monotonic() + PATIENCE
    while (match := re.search(pattern, server.text)) is None:
        assert server.wait(0.02) is None, server.text
        assert time.monotonic() < end, server.text[-2000:]
    return match[1]
