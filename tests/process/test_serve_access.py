"""Who may call the server: names and web pages without a key, and keys."""

from collections.abc import Iterator

import httpx
import pytest
from specpilot import SpeculativeDecoder
from specpilot.cli import main as cli
from specpilot.serve.server import Server

from ..helpers import http
from ..helpers.serving import serving

BODY = b'{"prompt": "What is 12 plus 30?", "max_tokens": 2}'
CALLS = [("GET", "/"), ("GET", "/metrics"), ("POST", "/v1/completions"), ("POST", "/v1/controllers/reload")]


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="tiny-lag-free", cost=0.2)


@pytest.fixture(scope="module")
def running(decoder: SpeculativeDecoder) -> Iterator[tuple[Server, str]]:
    names = {"allow_hosts": ["GPU1.example.org"], "allow_origins": ["https://page.example.org"]}
    with serving(decoder, length="tiny-lag-free", **names) as server:
        yield server


def call(address: str, method: str, path: str, **headers: str) -> httpx.Response:
    """Send a request as a browser or a program: a browser sends text/plain without a preflight request."""
    body = BODY if path == "/v1/completions" else None
    return http.request(method, address + path, content=body, headers={"Content-Type": "text/plain", **headers})


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_without_a_key_foreign_names_and_pages_are_refused(running: tuple[Server, str], method: str, path: str) -> None:
    server, address = running
    reloads = server.reloads
    port = address.rpartition(":")[2]
    for host in ("evil.example.com", f"evil.example.com:{port}", "127.0.0.1.evil.example.com", "[::1", "localhost."):
        refused = call(address, method, path, Host=host)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed"), host
    for origin in ("https://evil.example.com", "null", "http://localhost:1", f"http://127.0.0.1.evil:{port}"):
        refused = call(address, method, path, Origin=origin)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed"), origin
        assert refused.json()["error"]["type"] == "permission_error"
        assert f"--allow-origins {origin}" in refused.json()["error"]["message"]
    assert server.reloads == reloads


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "a.localhost", "127.0.0.1", "[::1]:9", "gpu1.example.org"]
)
def test_without_a_key_the_names_of_the_server_are_let_in(running: tuple[Server, str], host: str) -> None:
    for method, path in CALLS:
        assert call(running[1], method, path, Host=host).status_code == 200
        assert call(running[1], method, path, Host=host, Origin=f"http://{host}").status_code == 200  # its own page


def test_pages_that_are_named_are_let_in(running: tuple[Server, str]) -> None:
    answer = call(running[1], "POST", "/v1/completions", Origin="https://page.example.org")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://page.example.org")
    assert http.get(f"{running[1]}/health", headers={"Host": "evil.example.com"}).status_code == 200


def test_a_star_lets_all_in(decoder: SpeculativeDecoder) -> None:
    with serving(decoder, allow_hosts=["*"], allow_origins=["*"]) as (_, address):
        answer = call(address, "POST", "/v1/completions", Host="any.example.org", Origin="https://other.example.org")
        assert answer.status_code == 200


def test_with_a_key_only_the_password_of_a_browser_is_bound_to_the_page(decoder: SpeculativeDecoder) -> None:
    """A browser adds its stored password to the requests of every page. Only the server's page has the bearer token."""
    with serving(decoder, api_key="secret") as (_, address):
        headers = {"Host": "any.example.org", "Origin": "https://other.example.org"}
        bearer, basic = {"Authorization": "Bearer secret"}, {"Authorization": "Basic OnNlY3JldA=="}
        assert call(address, "POST", "/v1/completions", **headers, **bearer).status_code == 200
        assert call(address, "POST", "/v1/completions", **headers, **basic).status_code == 403
        foreign_headers = headers | {"Origin": "https://any.example.org"}
        assert call(address, "POST", "/v1/completions", **foreign_headers, **basic).status_code == 200
        assert call(address, "POST", "/v1/completions", **foreign_headers).status_code == 401


@pytest.mark.parametrize(
    ("key", "message"), [("", "is empty"), (" ", "a space"), ("key\n", "a space"), ("a\tb", "control")]
)
def test_a_key_that_no_client_can_send_is_refused(
    key: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECPILOT_API_KEY", key)
    assert cli.main(["serve", "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("specpilot: error: SPECPILOT_API_KEY: ")
    assert message in line
    assert cli.main(["serve", "--port", "0", "--api-key", key]) == 2
    assert "error: api_key: " in capsys.readouterr().err
