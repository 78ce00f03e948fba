"""`specpilot serve` as a process."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .processes import Process, command

WORDS = ["serve", "--length", "tiny-lag-free", "--cost", "0.2", "--port", "0"]


@contextmanager
def server_process(folder: Path, *words: str) -> Iterator[tuple[Process, str]]:
    """A server of its own process, and its address."""
    server = Process(command(*WORDS, *words), folder)
    try:
        yield server, said(server, r"on (http://\S+)")
    finally:
        server.send(signal.SIGKILL)
        server.end()


def said(server: Process, pattern: str) -> str:
    """Wait for a line of its standard error; its part in brackets."""
    while (found := re.search(pattern, server.text)) is None:
        assert server.wait(0.02) is None, server.text
    return found[1]
