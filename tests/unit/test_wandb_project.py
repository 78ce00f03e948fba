"""The project of ``--wandb``: its name, key and server are tried once, in a short time, before any work."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from specpilot.common import wandb_project
from specpilot.common.wandb_project import KEY, MODE, SERVER, WandbProject, find_project, refusing_wandb

from ..helpers.refusals import refused

ANSWER = {"data": {"viewer": {"username": "me"}, "entity": {"name": "team"}}}
REFUSED = rf"^{KEY}: http://\S+ refuses the key; set a key of this server, or unset {KEY} to log offline"


class Service(ThreadingHTTPServer):
    """A server with one ``answer``: a status, and a body or None for one that is never sent."""

    answer: tuple[int, Any] = (200, ANSWER)
    questions: list[tuple[str, dict[str, Any]]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.questions = []
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.questions.append((str(self.headers["Authorization"]), body))
        status, content = self.server.answer
        if content is None:
            self.server.ended.wait()
            return
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    server = Service()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(KEY, "k" * 40)
    monkeypatch.setenv(SERVER, f"{server.address}/")
    monkeypatch.delenv(MODE, raising=False)
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()


def test_a_project_that_can_be_logged_to(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_project("project").options == {"entity": None, "project": "project"}
    assert find_project("team/project").options == {"entity": "team", "project": "project"}
    assert [question[1].get("variables") for question in service.questions] == [None, {"entity": "team"}]
    assert service.questions[0][0].startswith("Basic ")
    service.answer = (200, {"errors": [{"message": "an unknown field"}]})  # of another version of the server
    assert find_project("team/project") == WandbProject("team", "project", offline=False)
    question_count = len(service.questions)
    monkeypatch.setenv(MODE, "offline")
    assert find_project("project").options == {"entity": None, "project": "project"}  # wandb follows the mode
    monkeypatch.delenv(KEY)
    assert find_project("team/project").options == {"entity": "team", "project": "project", "mode": "offline"}
    assert len(service.questions) == question_count


@pytest.mark.parametrize("answer", [(401, b""), (403, b"no"), (200, {"data": {"viewer": None}})])
def test_a_key_that_is_refused(answer: tuple[int, Any], service: Service) -> None:
    service.answer = answer
    with refused(REFUSED):
        find_project("project")


def test_a_team_that_is_not_there(service: Service) -> None:
    service.answer = (200, {"data": {"viewer": {"username": "me"}, "entity": None}})
    with refused(r"^wandb='no/project': http://\S+ has no team or user 'no' for this key; name another team or user"):
        find_project("no/project")


@pytest.mark.parametrize("name", ["", "/", "team/", "/project", "a/b/c", "what?", "50%", "a:b", " ", "a" * 129])
def test_names_of_no_project(name: str, service: Service) -> None:
    with refused("not the name of a project; give PROJECT or TEAM/PROJECT", f"wandb={name!r}: "):
        find_project(name)
    assert not service.questions


@pytest.mark.parametrize(
    ("answer", "reason"),
    [((502, b""), "Bad Gateway"), ((200, None), "timed out"), ((200, b"<html>"), "Expecting value")],
)
def test_a_server_that_cannot_be_reached(
    answer: tuple[int, Any],
    reason: str,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(wandb_project, "SECONDS", 0.5)
    service.answer = answer
    started = time.monotonic()
    assert find_project("team/project") == WandbProject("team", "project", offline=True)
    assert time.monotonic() - started < 30
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"wandb='team/project': {service.address} cannot be reached ({reason}")
    assert line.endswith("so the run is logged offline; 'wandb sync' uploads it later")


def test_no_network(service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("http://127.0.0.1:1", "no address"):
        monkeypatch.setenv(SERVER, address)
        assert find_project("project").offline
        assert "so the run is logged offline" in capsys.readouterr().err


def test_errors_of_wandb_are_one_line() -> None:
    import wandb

    words = r"^wandb='team/project': no such team; name another project, or unset WANDB_API_KEY to log offline$"
    with refused(words), refusing_wandb("team/project"):
        raise wandb.errors.CommError("no\n such team")
    with pytest.raises(KeyError), refusing_wandb("team/project"):
        raise KeyError("a defect")
