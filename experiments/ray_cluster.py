"""A Ray cluster of several nodes on this machine, whose nodes can be killed like machines.

As root on Linux every node gets a network namespace with an address of its own; elsewhere the nodes share the machine's
network. A node's processes carry its name in their environment, by which all of them are found and killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from specpilot.common.errors import InputError

PORT = 6379
MARK = "SPECPILOT_RAY_NODE"
ADDRESSES = "10.213.77."  # of the nodes, in a network of their own


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        name: value of ``MARK`` in the environment of its processes.
        namespace: its network namespace, or None.
        address: its IP address.
        token: the cluster's authentication token.
    """

    name: str
    namespace: str | None
    address: str
    token: str

    def command(self, words: Sequence[str]) -> list[str]:
        """``words`` as a command on this node."""
        inside = [] if self.namespace is None else ["ip", "netns", "exec", self.namespace]
        token = ["RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN={self.token}"]
        return [*inside, "env", f"{MARK}={self.name}", "RAY_USAGE_STATS_ENABLED=0", *token, *words]

    def processes(self, title: str = "") -> list[int]:
        """Its processes whose command line starts with ``title``."""
        mark = f"{MARK}={self.name}".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                ours = mark in (place / "environ").read_bytes().split(b"\0")
                if ours and (place / "cmdline").read_bytes().startswith(title.encode()):
                    found.append(int(place.name))
            except OSError:  # it has just ended
                continue
        return found

    def kill(self) -> None:
        """End all its processes at once with SIGKILL."""
        while found := self.processes():
            for process in found:
                kill(process)


@dataclass
class Cluster:
    """A head node and the nodes that joined it.

    Attributes:
        bridge: the bridge between the nodes' namespaces, or None.
    """

    folder: Path
    bridge: str | None
    nodes: list[Node] = field(default_factory=list)
    token: str = field(default_factory=lambda: uuid4().hex)

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    def add(self, cpus: int) -> Node:
        """Start a node; the first is the head.

        Raises:
            InputError: Ray does not start.
        """
        place = len(self.nodes) + 1
        namespace = None if self.bridge is None else f"{self.bridge}n{place}"
        address = f"127.0.0.{place + 1}" if namespace is None else f"{ADDRESSES}{place}"
        node = Node(uuid4().hex, namespace, address, self.token)
        self.nodes.append(node)
        if self.bridge is not None:
            self._connect(f"{self.bridge}n{place}", f"{self.bridge}v{place}", address)
        first = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        role = first if place == 1 else [f"--address={self.address}"]
        words = [
            sys.executable, "-m", "ray.scripts.scripts", "start", *role,
            f"--node-ip-address={address}", f"--num-cpus={cpus}", "--num-gpus=0", "--object-store-memory=100000000",
            "--disable-usage-stats",
        ]  # fmt: skip
        run(node.command(words))
        return node

    def _connect(self, namespace: str, link: str, address: str) -> None:
        run(["ip", "netns", "add", namespace])
        run(["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace])
        run(["ip", "link", "set", link, "master", str(self.bridge), "up"])
        inside = ["ip", "-n", namespace]
        run([*inside, "address", "add", f"{address}/24", "dev", "eth0"])
        for device in ("lo", "eth0"):
            run([*inside, "link", "set", device, "up"])

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
            if node.namespace is not None:
                subprocess.run(["ip", "netns", "delete", node.namespace], check=False)
        if self.bridge is not None:
            subprocess.run(["ip", "link", "delete", self.bridge], check=False)


@contextmanager
def cluster(cpus: Sequence[int]) -> Iterator[Cluster]:
    """A cluster with a node for each number of ``cpus``.

    Raises:
        InputError: Ray does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # sockets in it need short paths
    bridge: str | None = f"sp{os.getpid() % 100_000}"
    try:
        run(["ip", "link", "add", str(bridge), "type", "bridge"])
        run(["ip", "link", "set", str(bridge), "up"])
    except InputError:
        bridge = None
    made = Cluster(folder, bridge)
    try:
        for count in cpus:
            made.add(count)
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def kill(process: int) -> None:
    """Send SIGKILL to a process, which may have ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def run(words: Sequence[str]) -> None:
    """Run a command.

    Raises:
        InputError: it fails, or does not exist.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InputError(f"{words[0]}: is not installed") from error
    if done.returncode:
        raise InputError(f"{' '.join(words)}: {' '.join((done.stderr or done.stdout).split())[-300:]}")


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    """Wait until ``condition`` holds; return False if ``process`` ends before."""
    while not condition():
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        return condition()
    return True
