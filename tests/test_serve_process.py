"""`specpilot serve` as a process: what it refuses, how it ends, and what is left after kill -9."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from specpilot import main as cli
from specpilot.data_gen.on_policy import read_rounds

WORDS = ["serve", "--length", "tiny-lag-free", "--cost", "0.2", "--port", "0"]
BODY = {"prompt": "What is 12 plus 30?", "max_tokens": 64, "temperature": 1.0}


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own process, and its address."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "specpilot", *WORDS, *words], stderr=subprocess.PIPE, text=True, env=environment
    ) as started:
        try:
            assert started.stderr is not None
            found = re.search(r"on (http://\S+)", started.stderr.readline())
            assert found is not None
            yield started, found[1]
        finally:
            started.kill()


def test_a_signal_lets_running_requests_finish() -> None:
    with process() as (server, address):
        with httpx.stream(
            "POST", f"{address}/v1/completions", json=BODY | {"stream": True, "max_tokens": 300}
        ) as found:
            lines = found.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2] or '"finish_reason":"stop"' in rest[-2]
        assert server.wait(30) == 0


def test_after_kill_9_the_logged_shards_are_whole(tmp_path: Path) -> None:
    for _ in range(2):
        with process("--log-rounds", str(tmp_path / "log")) as (server, address):
            assert httpx.post(f"{address}/v1/completions", json=BODY | {"n": 64}, timeout=60).status_code == 200
            assert httpx.post(f"{address}/v1/completions", json=BODY | {"n": 3}, timeout=60).status_code == 200
            server.send_signal(signal.SIGKILL)
            server.wait(30)
    rows = read_rounds(tmp_path / "log")
    assert len(rows) == 128
    assert not list((tmp_path / "log").glob("*.tmp"))


def test_sighup_loads_the_controller_again() -> None:
    with process() as (server, address):
        server.send_signal(signal.SIGHUP)
        assert server.stderr is not None
        assert server.stderr.readline() == "specpilot: controller 'tiny-lag-free' loaded again\n"
        assert httpx.get(f"{address}/v1/controllers").json()["reloads"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "203.0.113.7"], "host='203.0.113.7'"),
        (["--target", "nowhere/no-model"], "nowhere/no-model"),
        (["--length", "tiny-head", "--draft", "tiny-draft-math", "--threshold", "0.5"], "trained for"),
        (["--router-state", "state"], "router_state: there is no router"),
        (["--max-running", "0"], "max_running=0"),
        (["--log-rounds", "log", "--draft", "null", "--length", "none"], "log_rounds: needs one draft model"),
    ],
)
def test_bad_options(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["serve", "--port", "0", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_taken_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--port", str(port)]) == 2
    assert f"port={port}, host='127.0.0.1': Address already in use; choose another" in capsys.readouterr().err
