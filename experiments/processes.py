"""Processes that an experiment starts. They end with the experiment, even if it is killed.

Each process has a process group of its own, with a watcher that reads from a pipe. Only the experiment holds the other
end of the pipe. The operating system closes this end when the experiment ends for any reason, also by SIGKILL. The
watcher then kills the group, with all processes that the process has started.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE = 5.0  # seconds that a process has to end after SIGTERM
# Standard input is the pipe. The watcher is no child of the command, which therefore cannot wait for it by mistake.
WATCHED = """
exec 3<&0 </dev/null
( (trap '' TERM INT HUP; read -r line <&3; kill -KILL 0) >/dev/null 2>&1 & )
exec "$@" 3<&-
"""


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process, and yield it as a ``subprocess.Popen``.

    At the end of the ``with`` block the process and all processes that it has started are stopped: its group gets
    SIGTERM. When the process has ended, or after 5 s, the rest of the group gets SIGKILL.

    Args:
        command: the program and its arguments. The program's standard input is empty.
        options: other options of ``subprocess.Popen``.
    """
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", WATCHED, "sh", *command], stdin=reader, start_new_session=True, **options
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    try:
        yield process
    finally:
        try:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE)
        finally:
            os.close(writer)  # the watcher kills the rest of the group
        process.wait()


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a process to its end, as ``subprocess.run`` does, and return its return code and output.

    The process is stopped if this call is interrupted.

    Args:
        command: the program and its arguments. The program's standard input is empty.
        options: other options of ``subprocess.Popen``.
    """
    with started(command, **options) as process:
        output, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
