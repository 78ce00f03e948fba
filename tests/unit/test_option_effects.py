"""Effects of options that no test of a command shows: the arguments of calls of other libraries."""

import json
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from specpilot.cli import main as cli
from specpilot.controllers.checkpoints import checkpoint
from specpilot.data_gen import ray_workers, responses
from specpilot.data_gen.options import ResponseOptions, WorkerOptions
from specpilot.data_gen.prompts import load_prompts
from specpilot.data_gen.responses import vllm_source
from specpilot.serve import run as serve_run
from specpilot.serve.options import ServeOptions

FILES = Path(__file__).parents[1] / "files"


@pytest.mark.parametrize(("log_requests", "level"), [(True, "info"), (False, "error")])
def test_the_log_and_the_end_of_a_server(log_requests: bool, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``log_requests`` and ``drain``, as uvicorn takes them."""
    configs: list[dict[str, Any]] = []
    http = SimpleNamespace(run=lambda sockets: None)
    monkeypatch.setattr(serve_run, "http_config", lambda server, **settings: configs.append(settings))
    monkeypatch.setattr(serve_run, "_Http", lambda *arguments: http)
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    options = ServeOptions(target="tiny", log_requests=log_requests, drain=7.4)
    listener: Any = SimpleNamespace(getsockname=lambda: ("127.0.0.1", 80))
    serve_run.run_server(SimpleNamespace(options=options), listener)  # type: ignore[arg-type]
    assert configs == [{"log_level": level, "access_log": log_requests, "timeout_graceful_shutdown": 7}]


def test_the_name_of_the_served_model() -> None:
    assert ServeOptions(target="tiny").name == "tiny"
    assert ServeOptions(target="tiny", served_model_name="mine").name == "mine"


@pytest.mark.parametrize(("device", "gpus"), [("auto", 2), ("cpu", 0)])
def test_workers_have_their_gpus(device: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[dict[str, Any]] = []
    remote = SimpleNamespace(options=lambda **settings: requests.append(settings))
    ray = SimpleNamespace(cluster_resources=lambda: {"GPU": 8.0}, remote=lambda actor: remote)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_workers, "connect", lambda *arguments: None)
    options = WorkerOptions(workers=4, gpus_per_worker=2)
    ray_workers.RayWorkers(lambda: None, options, device, Console(quiet=True))  # type: ignore[arg-type,return-value]
    assert [request["num_gpus"] for request in requests] == [gpus]


def test_how_long_a_response_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> Any:
        waited.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    maker = object.__new__(responses.OpenAIResponses)
    maker.url, maker.headers = "http://127.0.0.1:9", {}
    maker.responses = ResponseOptions(responses="openai", base_url="http://127.0.0.1:9", timeout=3.5)
    with pytest.raises(TimeoutError):
        maker._send({})
    assert waited == [3.5]


def test_the_number_of_gpus_of_vllm_is_recorded() -> None:
    assert vllm_source("0.32.0", ResponseOptions(responses="vllm", tensor_parallel=2)).tensor_parallel == 2


def test_prompts_that_are_chosen() -> None:
    prompts = load_prompts("builtin", split="test")
    assert load_prompts("builtin", split="test", skip=3, limit=2) == prompts[3:5]
    assert load_prompts("builtin", split="test", domains=("sql",)) == [
        prompt for prompt in prompts if prompt.domain == "sql"
    ]
    assert {prompt.id for prompt in load_prompts("builtin", split="train")}.isdisjoint(prompt.id for prompt in prompts)


@pytest.mark.parametrize("private", [False, True])
def test_a_controller_is_pushed_where_it_is_asked(
    private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[Any] = []
    monkeypatch.setattr(
        checkpoint,
        "push_controller",
        lambda folder, name, *, private: pushed.append((Path(folder).name, name, private)),
    )
    words = [
        "export",
        str(FILES / "run"),
        str(tmp_path / "head"),
        "--push-to",
        "me/head",
        "--private" if private else "--no-private",
    ]
    assert cli.main(words) == 0
    assert pushed == [("head", "me/head", private)]
    assert json.loads((tmp_path / "head" / "config.json").read_text())["kind"] == "acceptance-head"
