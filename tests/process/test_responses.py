"""Texts of a server that specpilot labels: exact with token ids, kept after an interruption, and refused by name."""

import io
import shutil
import sys
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from email.message import Message
from http.client import IncompleteRead
from pathlib import Path

import pytest
from specpilot.common.errors import InputError
from specpilot.data_gen import responses
from specpilot.data_gen.acceptance import AcceptanceDatasetBuilder, make_acceptance_data
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.kinds import AcceptanceRow, ResponseRow, read_dataset
from specpilot.data_gen.options import AcceptanceDataOptions, ResponseOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models.loading.names import load_tokenizer
from specpilot.serve.server import Server

from ..helpers import http
from ..helpers.folders import contents
from ..helpers.refusals import refused
from ..helpers.serving import serving
from ..helpers.tiny import pair_and_prompts
from ..helpers.training import assert_labels


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> AcceptanceDataOptions:
    prompts = (f"the number {i}" for i in range(10) for _ in range(i % 2 + 1))
    paths = pair_and_prompts(tmp_path_factory.mktemp("responses"), prompts)
    return AcceptanceDataOptions(**paths, max_new_tokens=12, batch_size=3, shard_size=4)


@pytest.fixture(scope="module")
def running(base: AcceptanceDataOptions) -> Iterator[tuple[Server, str]]:
    with serving(SpeculativeDecoder.from_pretrained(base.target, base.draft, device="cpu", length=4)) as server:
        yield server


@pytest.fixture
def options(running: tuple[Server, str]) -> ResponseOptions:
    return ResponseOptions(responses="openai", base_url=f"{running[1]}/v1", model="tiny", retries=0)


def test_labels_are_those_of_specpilots_forwards(
    base: AcceptanceDataOptions, options: ResponseOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_acceptance_data(base, str(tmp_path / "data"), responses=options)
    messages = " ".join(capsys.readouterr().err.split())
    assert "0 of 10 texts were tokenised again; 0 of these have another number of tokens now; the target" in messages
    texts = {row.prompt_id: row for row in read_dataset(tmp_path / "data-responses", ResponseRow)}
    source = read_manifest(folder).responses
    assert (source.source, source.base_url, source.model) == ("openai", options.base_url, "tiny")
    assert source.sha256 == read_manifest(tmp_path / "data-responses").dataset_fingerprint
    rows = read_dataset(folder, AcceptanceRow)
    assert len(rows) == len(texts) == 10
    assert all(texts[row.prompt_id].exact and row.x == texts[row.prompt_id].tokens for row in rows)
    assert_labels(AcceptanceDatasetBuilder(base), rows)


def test_a_server_without_token_ids(
    base: AcceptanceDataOptions, options: ResponseOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = responses.OpenAIResponses._send
    monkeypatch.setattr(
        responses.OpenAIResponses, "_send", lambda self, body: send(self, body | {"return_token_ids": False})
    )
    make_acceptance_data(base, tmp_path / "data", responses=options)
    rows = read_dataset(tmp_path / "data-responses", ResponseRow)
    assert not any(row.exact for row in rows)
    tokenizer = load_tokenizer(base.target)
    for row in rows:
        end = [tokenizer.eos_token_id] if row.finish_reason == "stop" else []
        assert row.tokens == [*tokenizer(row.text)["input_ids"], *end]
    shards = read_manifest(tmp_path / "data-responses").shards
    assert sum(shard.tokenised_again for shard in shards) == 10


def test_a_server_that_fails_for_a_while(
    base: AcceptanceDataOptions, options: ResponseOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of finished shards are not requested again. A request is repeated if the server is busy."""
    send = responses.OpenAIResponses._send
    requests: list[list[int]] = []
    down = True

    def failing(self: responses.OpenAIResponses, body: dict[str, object]) -> object:
        requests.append(body["prompt"])  # type: ignore[arg-type]
        if down and len(requests) > 6:
            raise ConnectionRefusedError(111, "Connection refused")
        return send(self, body)

    whole = make_acceptance_data(base, tmp_path / "whole", responses=options)
    monkeypatch.setattr(responses.OpenAIResponses, "_send", failing)
    with pytest.raises(InputError, match=r"base_url='http://\S+':"):
        make_acceptance_data(base, tmp_path / "data", responses=options)
    assert not (tmp_path / "data").exists()
    first = [tuple(prompt) for prompt in requests[:4]]
    requests.clear()
    down = False
    make_acceptance_data(base, tmp_path / "data", responses=options)
    assert len(requests) == 6
    assert not {*first} & {tuple(prompt) for prompt in requests}
    assert contents(whole) == contents(tmp_path / "data")
    assert contents(tmp_path / "whole-responses") == contents(tmp_path / "data-responses")
    shutil.rmtree(tmp_path / "data")
    requests.clear()
    make_acceptance_data(base, tmp_path / "data", responses=options)
    assert requests == []
    assert contents(whole) == contents(tmp_path / "data")


WHOLE = {"text": "one", "finish_reason": "length"}
FLAWS: list[object] = [  # what a busy server does or answers
    TimeoutError("timed out"), ConnectionResetError(104, "reset"), IncompleteRead(b"{"),
    *(urllib.error.HTTPError("http://a", status, "", Message(), io.BytesIO(b"busy")) for status in (503, 520, 529)),
    {"error": {"message": "overloaded"}}, {"choices": []}, {"choices": [{"message": {"content": None}}]}, None,
    *({"choices": [WHOLE | change]} for change in (
        {"text": None}, {"finish_reason": None}, {"finish_reason": "abort"}, {"text": "\ud83d"}, {"token_ids": [10**6]},
    )),
]  # fmt: skip


def test_a_request_is_sent_again(
    base: AcceptanceDataOptions, options: ResponseOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(responses.time, "sleep", pauses.append)
    answers = iter([*FLAWS, {"choices": [WHOLE]}, {"choices": [WHOLE | {"finish_reason": "stop"}], "usage": None}])

    def answer(self: responses.OpenAIResponses, body: dict[str, object]) -> object:
        status = next(answers)
        if isinstance(status, Exception):
            raise status
        return status

    monkeypatch.setattr(responses.OpenAIResponses, "_send", answer)
    data_options = replace(base, batch_size=1, limit=2)
    make_acceptance_data(data_options, tmp_path / "data", responses=replace(options, retries=len(FLAWS)))
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert len(pauses) == len(FLAWS)
    tokenizer = load_tokenizer(base.target)
    rows = read_dataset(tmp_path / "data-responses", ResponseRow)
    ids = tokenizer("one")["input_ids"]
    assert sorted(row.tokens for row in rows) == sorted([ids, [*ids, tokenizer.eos_token_id]])
    assert [row.reported == len(row.tokens) for row in rows] == [True, True]


def test_the_plugin_for_vllm_is_missing(
    base: AcceptanceDataOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "specpilot_vllm", None)
    monkeypatch.delitem(sys.modules, "specpilot_vllm.responses", raising=False)
    with pytest.raises(InputError, match=r"^responses='vllm': .* pip install 'specpilot-vllm\[vllm\]'"):
        make_acceptance_data(base, tmp_path / "data", responses=ResponseOptions(responses="vllm"))
    assert not any(tmp_path.iterdir())


def test_a_server_whose_texts_are_all_empty(
    base: AcceptanceDataOptions, options: ResponseOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty texts are refused in the first large shard, or when all texts are complete.

    A single empty text is accepted.
    """
    written = {"finish_reason": "stop", "token_ids": None}
    texts = iter(["a", *[""] * 9])
    monkeypatch.setattr(
        responses.OpenAIResponses, "_send", lambda *_: {"choices": [{**written, "text": next(texts, " \n")}]}
    )
    make_acceptance_data(replace(base, batch_size=1), tmp_path / "some", responses=options)
    starts = {
        8: f"base_url='{options.base_url}': all texts of 8 prompts",
        4: f"{tmp_path / '4-responses'}: all 10",
    }
    for size, start in starts.items():
        with refused("are empty; check the .*model.*, and --chat or --no-chat", start):
            make_acceptance_data(replace(base, shard_size=size), tmp_path / f"{size}", responses=options)
        assert not (tmp_path / f"{size}").exists()
    assert not (tmp_path / "8-responses" / "manifest.json").exists()


def test_unusable_servers_are_refused(
    base: AcceptanceDataOptions, options: ResponseOptions, running: tuple[Server, str], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"no text for prompt .*404 Not Found"):
        make_acceptance_data(base, tmp_path / "data", responses=replace(options, base_url=running[1]))
    with pytest.raises(InputError, match=r"no text for prompt .*model"):
        make_acceptance_data(base, tmp_path / "data", responses=replace(options, model="another"))
    assert not (tmp_path / "data").exists()
    streamed = {"prompt": "a", "stream": True, "return_token_ids": True}
    answer = http.post(f"{running[1]}/v1/completions", json=streamed)
    assert (answer.status_code, "token ids are not streamed" in answer.text) == (400, True)
