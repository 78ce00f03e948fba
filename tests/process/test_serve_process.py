"""`specpilot serve` as a process: refused options, its end, and files after kill -9."""

import json
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from specpilot.cli import main as cli
from specpilot.data_gen.kinds import RoundsRow, read_dataset
from specpilot.serve.run import answering

from ..helpers import http
from ..helpers.server_process import server_process, wait_for_line

BODY = {"prompt": "What is 12 plus 30?", "max_tokens": 64, "temperature": 1.0}


def test_a_signal_lets_running_requests_finish(tmp_path: Path) -> None:
    with server_process(tmp_path) as (server, address):
        with http.stream(
            "POST", f"{address}/v1/completions", json=BODY | {"stream": True, "max_tokens": 300}
        ) as response:
            lines = response.iter_lines()
            next(lines)
            server.send(signal.SIGTERM)
            events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in events[-2] or '"finish_reason":"stop"' in events[-2]
        assert server.end().code == 0


def test_after_kill_9_the_logged_shards_are_whole(tmp_path: Path) -> None:
    for _ in range(2):
        with server_process(tmp_path, "--log-rounds", str(tmp_path / "log")) as (server, address):
            for texts in (64, 3):
                body = BODY | {"max_tokens": 8, "n": texts}
                assert http.post(f"{address}/v1/completions", json=body, timeout=60).status_code == 200
            server.send(signal.SIGKILL)
            server.end()
    rows = read_dataset(tmp_path / "log", RoundsRow)
    assert len(rows) == 128
    assert not list((tmp_path / "log").glob("*.tmp"))


def test_sighup_loads_the_controller_again(tmp_path: Path) -> None:
    with server_process(tmp_path) as (server, address):
        assert "0.2" in wait_for_line(server, "specpilot: costs: (.*)\n")
        server.send(signal.SIGHUP)
        assert wait_for_line(server, "specpilot: (.* reloaded)\n") == "controller 'tiny-lag-free' reloaded"
        assert http.get(f"{address}/v1/controllers").json()["reloads"] == 1


def test_a_taken_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert cli.main(["serve", "--port", str(port)]) == 2
    assert f"port={port}, host='127.0.0.1': Address already in use; choose another" in capsys.readouterr().err


# What is answered before it can decode


def test_503_with_the_reason_until_the_server_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/health"

        def health() -> tuple[int, dict[str, str]]:
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(address, timeout=20)
            return error.value.code, json.load(error.value)

        with answering(listener) as set_reason:
            assert health() == (503, {"status": "starting", "reason": "the models are being loaded"})
            with socket.create_connection(listener.getsockname()):
                pass  # a client that says nothing
            set_reason("costs are measured")
            assert health() == (503, {"status": "starting", "reason": "costs are measured"})
        assert capsys.readouterr().err == "specpilot: costs are measured\n"
        assert listener.gettimeout() is None
        with socket.create_connection(listener.getsockname()) as late, listener.accept()[0] as accepted:
            late.sendall(b"x")  # is the server's
            assert accepted.recv(1) == b"x"
