"""Runs generated Python in a separate process without network and subprocesses, with limits on time, memory and files.

This protects against mistakes in generated code, not against malicious code; for that, use a container. An audit hook
refuses sockets, processes, ctypes and writing outside an empty folder. The kernel limits time and memory and, if
network namespaces are permitted, removes the network.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass

# The child's program. It unshares the network and installs the audit hook before it runs the generated code.
_CHILD = r"""
import json, os, resource, sys
job = json.loads(sys.stdin.buffer.read())
verdict = os.fdopen(os.dup(1), "w")
silent = os.open(os.devnull, os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(silent, number)
try:
    import ctypes
    ctypes.CDLL(None).unshare(0x40000000 | 0x10000000)  # CLONE_NEWNET | CLONE_NEWUSER
except (OSError, AttributeError):
    pass
for name in ("ctypes", "_ctypes"):
    sys.modules.pop(name, None)
for limit, most in (
    (resource.RLIMIT_AS, job["memory"]), (resource.RLIMIT_CPU, job["seconds"] + 1), (resource.RLIMIT_FSIZE, 2**20),
    (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(limit, (most, most))
here = os.path.realpath(os.getcwd())
REFUSED = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill", "ctypes.",
    "pty.", "signal.", "sys.addaudithook", "os.chdir", "os.mkdir",
    "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.chown",
    "os.link", "os.symlink", "os.truncate", "os.utime", "shutil.", "resource.", "mmap.", "syslog.", "os.putenv",
)
def guard(event, arguments):
    if event.startswith(REFUSED) or event == "import" and arguments[0] in ("ctypes", "_ctypes", "_posixsubprocess"):
        raise PermissionError(event)
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        writes = any(c in (arguments[1] or "") for c in "wax+") or arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes and not os.path.realpath(os.fsdecode(arguments[0])).startswith(here + os.sep):
            raise PermissionError(event)
sys.addaudithook(guard)
exec(compile(job["program"], "<generated>", "exec"), {"__name__": "__main__"})
verdict.write(job["token"])
verdict.flush()
"""


@dataclass(frozen=True)
class Limits:
    """Limits of a program: wall-clock seconds, and memory in MiB including the interpreter."""

    seconds: float = 5.0
    memory_mib: int = 512


DEFAULT = Limits()


def passes(program: str, limits: Limits = DEFAULT) -> bool:
    """Whether ``program`` runs to its end without an error and within the limits; it is killed at the time limit."""
    token = secrets.token_hex(16)  # printed at the end of the program: exiting early with code 0 is a failure
    job = {
        "program": program,
        "token": token,
        "memory": limits.memory_mib * 2**20,
        "seconds": int(limits.seconds),
    }
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=folder, env={}, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = child.communicate(json.dumps(job).encode(), timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdout.close()
    return output.decode(errors="replace") == token
