"""Connections of the server: bodies that are refused, clients that leave, HEAD, streams and their characters."""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from specpilot import SpeculativeDecoder
from specpilot.cli.commands.generate import _as_json
from specpilot.data_gen.text_file import TextFile
from specpilot.infer.core import Generation
from specpilot.serve import app as server_app
from specpilot.serve.connections import Connection
from specpilot.serve.options import ServeOptions
from specpilot.serve.responses import event
from specpilot.serve.run import http_config
from specpilot.serve.server import Server

from ..helpers import http
from ..helpers.server_process import server_process, wait_for_line
from ..helpers.serving import serving, wait_until

STATIC = Path(server_app.__file__).parent / "static"
MODEL = "m" * 500_000


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=2)


@pytest.fixture(scope="module")
def running(decoder: SpeculativeDecoder) -> Iterator[tuple[Server, str]]:
    with serving(decoder) as server:
        yield server


def connect(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def head(path: str, length: int, *lines: str) -> bytes:
    """Return the head of a request with a body of ``length`` bytes."""
    first = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *lines]
    return "\r\n".join([*first, "", ""]).encode()


def read_all(connection: socket.socket) -> bytes:
    """Return all bytes that are received until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"])
def test_no_character_of_a_stream_ends_a_line_before_its_end(character: str) -> None:
    """Clients such as httpx split streams by str.splitlines, which also splits at other characters than line feeds."""
    content: dict[str, Any] = {"text": f"a{character}b", "é": "日本"}
    (line, empty) = event(content).splitlines()
    assert (json.loads(line.removeprefix("data: ")), empty) == (content, "")
    assert "日本" in line
    generation = Generation([1, 2], text=content["text"])
    (line,) = _as_json(generation).splitlines()
    assert json.loads(line)["text"] == content["text"]


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"])
def test_no_character_of_a_text_ends_its_line_in_a_file(character: str, tmp_path: Path) -> None:
    content: dict[str, Any] = {"text": f"a{character}b", "é": "日本"}
    heads: list[dict[str, object]] = [{"seed": seed, "prompt": f"{seed}{character}"} for seed in (3, 4)]
    for number in (0, 1):  # continued by another process
        file = TextFile(tmp_path / "texts.jsonl", {}, heads)
        file.write(content, number)
        file.close()
    lines = (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [head | content for head in heads]
    assert "日本" in lines[0]


def test_streams_are_passed_on_at_once(running: tuple[Server, str]) -> None:
    body = {"prompt": "What is 12 plus 30?", "max_tokens": 4, "stream": True}
    headers = http.post(f"{running[1]}/v1/completions", json=body).headers
    assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache")


@pytest.mark.parametrize(
    "path", ["/health", "/", "/page.js", "/metrics", "/v1/models", "/v1/models/tiny", "/v1/controllers"]
)
def test_head(running: tuple[Server, str], path: str) -> None:
    with httpx.Client(base_url=running[1], verify=False) as client:
        reply = client.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
        whole = client.get(path)
        assert reply.headers["content-type"] == whole.headers["content-type"]
    assert http.head(f"{running[1]}/v1/completions").status_code == 405


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", "POST"),
        ("DELETE", "/v1/chat/completions", "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("PUT", "/", "GET, HEAD"),
    ],
)
def test_405_names_the_methods_of_the_path(running: tuple[Server, str], method: str, path: str, allowed: str) -> None:
    reply = httpx.request(method, f"{running[1]}{path}")
    assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
    assert reply.json()["error"]["message"] == f"{method} {path}: use {allowed}"


@pytest.mark.parametrize("begin", [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n", b"\x16\x03\x01" * 99])
def test_what_is_not_http_is_answered_400_before_the_connection_closes(
    running: tuple[Server, str], begin: bytes
) -> None:
    """The connection is not reset if the client continues to send."""
    with connect(running[1]) as connection:
        connection.sendall(begin + b"x" * 100_000)
        time.sleep(0.2)
        connection.sendall(b"x" * 50_000)
        time.sleep(0.2)
        connection.sendall(b"x" * 50_000)
        received = read_all(connection)
        assert received.startswith(b"HTTP/1.1 400 ")
        assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


@pytest.mark.parametrize(
    ("path", "key", "status"), [("/v1/completions", "k", 413), ("/v1/models", "k", 405), ("/v1/models", "", 401)]
)
def test_a_body_that_is_refused_is_read_before_the_connection_closes(
    decoder: SpeculativeDecoder, path: str, key: str, status: int
) -> None:
    """The response is complete before the end of the body, and the connection is not reset when the rest arrives."""
    with serving(decoder, api_key="k", max_body=1000) as (_, address), connect(address) as connection:
        length = 200_000
        connection.sendall(head(path, length, "Connection: close", f"Authorization: Bearer {key}") + b"x" * 100_000)
        received = b""
        while not received.endswith(b"}}"):
            part = connection.recv(1 << 16)
            assert part, received
            received += part
        assert received.startswith(f"HTTP/1.1 {status} ".encode())
        connection.sendall(b"x" * 50_000)
        connection.sendall(b"x" * 50_000)
        assert read_all(connection) == b""  # an end, no reset


def test_a_client_that_leaves_inside_its_body_is_no_fault(
    running: tuple[Server, str],
) -> None:
    _, address = running
    faults = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            faults.append(record.getMessage())

    watch = Watch()
    logging.getLogger("uvicorn.error").addHandler(watch)
    try:
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/controllers/reload"):
            with connect(address) as connection:
                connection.sendall(head(path, 1000) + b"{")
        wait_until(lambda: "specpilot:request_cancelled_total 3.0" in http.get(f"{address}/metrics").text)
        text = http.get(f"{address}/metrics").text
    finally:
        logging.getLogger("uvicorn.error").removeHandler(watch)
    assert faults == []
    assert 'status="500"' not in text


BAD: list[tuple[str, Any]] = [
    ("/v1/completions", {"prompt": "a", "model": MODEL}),
    ("/v1/completions", {"prompt": "a", MODEL: 1}),
    ("/v1/completions", {"prompt": "a", "speculation": {"length": MODEL}}),
    ("/v1/controllers/reload", {MODEL: 1}),
]


@pytest.mark.parametrize(("path", "body"), BAD)
def test_errors_quote_little_of_what_was_sent(running: tuple[Server, str], path: str, body: Any) -> None:
    reply = http.post(running[1] + path, json=body)
    assert reply.status_code in (400, 404)
    assert len(reply.content) < 5000
    assert "mmm" in reply.json()["error"]["message"]
    if path == "/v1/completions" and "model" in body:
        assert reply.json()["error"]["message"].endswith("this server has the model 'tiny'; request that one")


def test_the_page_works_below_a_prefix() -> None:
    """The paths of the page's files and requests are relative to the page."""
    for file in STATIC.iterdir():
        text = file.read_text()
        for absolute in ('href="/', 'src="/', 'fetch("/', '"/v1', 'from "/'):
            assert absolute not in text, file.name


def test_idle_connections_stay_open_as_long_as_the_option_says(decoder: SpeculativeDecoder) -> None:
    assert http_config(Server(decoder, ServeOptions())).timeout_keep_alive == 75
    with serving(decoder, keep_alive=1) as (_, address), connect(address) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        start = time.monotonic()
        assert read_all(connection).endswith(b'{"status":"ok"}')  # and then the end
        assert time.monotonic() - start > 0.9


GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_clients_that_send_too_slowly_are_answered_408(decoder: SpeculativeDecoder) -> None:
    with serving(decoder, receive_time=0.3) as (_, address):
        whole = head("/v1/completions", 100)
        for data in (whole[:30], whole, whole + b"{", GET % b"/health" + whole[:5]):
            with connect(address) as connection:
                connection.sendall(data)
                received = read_all(connection)
                assert b"HTTP/1.1 408 " in received, data
                assert received.endswith(b'"param": null, "code": "receive_time"}}')
        with connect(address) as connection:
            assert read_all(connection) == b""
        assert http.get(f"{address}/health").status_code == 200


def test_clients_that_take_nothing_of_their_responses_are_cut_off(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    disconnected, connection_lost = threading.Event(), Connection.connection_lost

    def record(connection: Connection, error: Exception | None) -> None:
        connection_lost(connection, error)
        disconnected.set()

    monkeypatch.setattr(Connection, "connection_lost", record)
    with serving(decoder, receive_time=0.3) as (_, address), connect(address) as connection:
        connection.sendall(GET % b"/page.js" * 1500)  # more than the buffers of both sides hold
        assert disconnected.wait(30)


def test_connections_are_limited(decoder: SpeculativeDecoder) -> None:
    with serving(decoder, max_connections=2) as (_, address):
        connections = [connect(address) for _ in range(2)]
        for connection in connections:
            connection.sendall(GET % b"/health")
            connection.recv(1 << 16)
        reply = http.get(f"{address}/v1/models")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "too_many_connections")
        assert (reply.headers["retry-after"], reply.headers["connection"]) == ("1", "close")
        assert http.get(f"{address}/health").status_code == 200
        for connection in connections:
            connection.close()
        wait_until(lambda: http.get(f"{address}/v1/models").status_code == 200)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_clients_that_take_all_file_descriptors_do_no_harm(tmp_path: Path) -> None:
    """The server prints one line, waits without using the processor, and serves again when the clients have left."""
    with server_process(tmp_path, files=64) as (server, address):
        connections = [connect(address) for _ in range(200)]
        for connection in connections:
            connection.sendall(GET[:3])
        reason = wait_for_line(server, "specpilot: no connection can be accepted: (.*)\n")
        assert reason.endswith("Too many open files; raise `ulimit -n`")
        before, text = processor_seconds(server.pid), server.text
        time.sleep(3)  # asyncio tries again every second
        assert processor_seconds(server.pid) - before < 0.3
        assert server.text == text
        assert text.count("no connection can be accepted") == 1
        assert "Traceback" not in text
        for connection in connections:
            connection.close()
        wait_until(lambda: http.get(f"{address}/health").status_code == 200)
        reply = http.post(f"{address}/v1/completions", json={"prompt": "a", "max_tokens": 2}, timeout=60)
        assert reply.status_code == 200
