"""The server with real clients over real connections: texts, streams, log probabilities, metrics, controllers."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from openai.types.chat import ChatCompletionMessage
from specpilot import SpeculativeDecoder
from specpilot.compare.labelled import read_labelled
from specpilot.compare.options import CompareOptions
from specpilot.controllers.length import AcceptanceLength
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.kinds import RoundsRow, read_dataset
from specpilot.infer.text_stream import TextStream
from specpilot.serve.round_log import RoundLog
from specpilot.serve.server import Server

from ..helpers import http
from ..helpers.serving import serving, wait_until
from ..helpers.tiny import save_pair

QUESTION = "What is 12 plus 30?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="tiny-lag-free", cost=0.2)


@pytest.fixture(scope="module")
def running(decoder: SpeculativeDecoder) -> Iterator[tuple[Server, str]]:
    with serving(decoder, length="tiny-lag-free") as reply:
        yield reply


@pytest.fixture(scope="module")
def client(running: tuple[Server, str]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running[1]}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"temperature": 0.7, "top_p": 0.9}, {"stop": [" the"]}])
def test_texts_are_those_of_generate(client: openai.OpenAI, decoder: SpeculativeDecoder, settings: Any) -> None:
    prompts = [QUESTION, "List all files."]
    reply = client.completions.create(model="tiny", prompt=prompts, max_tokens=24, seed=5, n=3, **settings)
    texts = decoder.generate(prompts, n=3, chat=False, max_new_tokens=24, seed=5, **settings)
    expected = [generation for of_prompt in texts for generation in of_prompt]
    assert [choice.text for choice in reply.choices] == [generation.text for generation in expected]
    assert reply.usage.completion_tokens == sum(len(generation.tokens) for generation in expected)
    assert reply.usage.prompt_tokens == sum(len(generation.prompt_tokens) for generation in expected[::3])
    reasons = ["length" if generation.finish_reason == "length" else "stop" for generation in expected]
    assert [choice.finish_reason for choice in reply.choices] == reasons


def test_chat_streams_what_it_answers_whole(client: openai.OpenAI, decoder: SpeculativeDecoder) -> None:
    """The conversation has several turns, and the client sends back an answer unchanged."""
    before: list[Any] = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    answer = ChatCompletionMessage(role="assistant", content="42")
    turns = [*before, answer, *MESSAGES]
    settings: Any = {"model": "tiny", "messages": turns, "max_completion_tokens": 24, "seed": 3, "n": 2}
    whole = client.chat.completions.create(**settings)
    texts, reasons, usage = ["", ""], [None, None], None
    for chunk in client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    conversation = [*before, {"role": "assistant", "content": "42"}, *MESSAGES]
    expected = decoder.generate(conversation, n=2, seed=3, max_new_tokens=24)
    assert texts == [generation.text for generation in expected]
    assert usage.prompt_tokens == len(expected[0].prompt_tokens)


def test_options_of_load_generators(running: tuple[Server, str], decoder: SpeculativeDecoder) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": QUESTION, "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
    reply = http.post(f"{running[1]}/v1/completions", json=body | {"stream_options": options}).text
    chunks = [json.loads(line[6:]) for line in reply.splitlines() if line.startswith("data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 200
    assert len(decoder.generate(QUESTION, chat=False, max_new_tokens=200, temperature=0).tokens) < 200


@pytest.mark.parametrize(
    "drafting",
    [
        {"draft": "tiny-draft", "tree": "2x1x1", "verifier": "mcss"},
        {"draft": "tiny-draft+ngram", "tree": "auto", "length": "tiny-lag-free", "copies": "tiny-copies", "cost": 0.2},
    ],
)
def test_trees_and_copies_share_rounds(drafting: Any) -> None:
    """Texts of simultaneous requests, with traces of their trees, equal those of single requests."""
    decoder = SpeculativeDecoder.from_pretrained("tiny", **drafting)
    expected = [decoder.generate(QUESTION, chat=False, max_new_tokens=24, seed=seed).text for seed in range(4)]
    body = {"prompt": QUESTION, "max_tokens": 24, "speculation": {"trace": True}}
    with serving(decoder) as (_, address), ThreadPoolExecutor() as clients:
        url = f"{address}/v1/completions"
        answers = [clients.submit(http.post, url, json=body | {"seed": seed}, timeout=60) for seed in range(4)]
        choices = [answer.result().json()["choices"][0] for answer in answers]
    assert [choice["text"] for choice in choices] == expected
    drafts = [[token["position"] for token in round["drafted"]] for choice in choices for round in choice["rounds"]]
    assert any(len(set(positions)) < len(positions) for positions in drafts)  # siblings
    assert all(sorted(set(positions)) == list(range(max(positions, default=-1) + 1)) for positions in drafts)
    for choice in choices:
        remaining = 23
        for round in choice["rounds"]:
            depth = max((token["position"] for token in round["drafted"]), default=-1) + 1
            assert (round["stopped_by"] == "max_tokens") <= (depth >= remaining)
            remaining -= len(round["emitted"])


def test_a_trace_holds_the_bytes_of_parts_of_characters(tmp_path: Path) -> None:
    decoder = SpeculativeDecoder.from_pretrained(*save_pair(tmp_path), length=2)
    body = {"prompt": QUESTION, "max_tokens": 100, "seed": 1, "ignore_eos": True, "speculation": {"trace": True}}
    with serving(decoder) as (_, address):
        (choice,) = http.post(f"{address}/v1/completions", json=body, timeout=60).json()["choices"]
    emitted = [token for round in choice["rounds"] for token in round["emitted"] if token["text"] != "<|end|>"]
    assert any("bytes" in token for token in emitted)
    text = b"".join(bytes(token["bytes"]) if "bytes" in token else token["text"].encode() for token in emitted)
    assert text.decode(errors="replace") == choice["text"]


def test_log_probabilities_are_the_models(client: openai.OpenAI, decoder: SpeculativeDecoder) -> None:
    chat = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=12, seed=1, temperature=0.8, logprobs=True, top_logprobs=3
    )
    generation = decoder.generate(QUESTION, chat=True, max_new_tokens=12, seed=1, temperature=0.8)
    ids = torch.tensor([generation.prompt_tokens + generation.tokens])
    with torch.no_grad():
        logits = decoder.target.model(ids).logits[0, len(generation.prompt_tokens) - 1 : -1]
    expected = torch.log_softmax(logits.float(), -1)
    entries = chat.choices[0].logprobs.content
    assert len(entries) == len(generation.tokens)
    for row, token, entry in zip(expected, generation.tokens, entries, strict=True):
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert [alternative.logprob for alternative in entry.top_logprobs] == pytest.approx(
            row.topk(3).values.tolist(), abs=1e-3
        )
    assert "".join(entry.token for entry in entries) == chat.choices[0].message.content
    text = client.completions.create(model="tiny", prompt=QUESTION, max_tokens=8, seed=2, logprobs=2)
    logprobs = text.choices[0].logprobs
    special = decoder.tokenizer.all_special_tokens
    assert "".join(token for token in logprobs.tokens if token not in special) == text.choices[0].text
    shown_tokens = ["" if token in special else token for token in logprobs.tokens]
    assert logprobs.text_offset == [len("".join(shown_tokens[:i])) for i in range(len(shown_tokens))]


def chunks_of(response: str) -> list[dict[str, Any]]:
    """Return the events of a finished stream."""
    lines = [line.removeprefix("data: ") for line in response.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_everything_ends_with_the_stop_string() -> None:
    """Texts end at the token that completes the stop string, with any drafts."""
    body = {"prompt": "What is 12 plus 30?\n", "temperature": 0, "max_tokens": 40, "return_token_ids": True}
    counted = []
    for length in ("none", "8"):
        decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=length)
        expected = decoder.generate(body["prompt"], chat=False, temperature=0, max_new_tokens=40, stop="FROM")
        assert [token for round in expected.rounds for token in round.emitted] == expected.tokens
        assert (expected.stats.n_generated, expected.finish_reason) == (len(expected.tokens), "stop")
        with serving(decoder) as (_, address):
            reply = http.post(f"{address}/v1/completions", json=body | {"stop": ["FROM"], "logprobs": 1}).json()
            ending = body | {"stop_token_ids": expected.tokens[-1:], "include_stop_str_in_output": True}
            by_token = http.post(f"{address}/v1/completions", json=ending).json()
            metrics = http.get(f"{address}/metrics").text
        (choice,) = reply["choices"]
        assert (choice["text"], choice["token_ids"]) == (expected.text, expected.tokens)
        assert by_token["choices"][0]["text"] == expected.text + "FROM"
        assert f"specpilot:generation_tokens_total {2.0 * len(expected.tokens)}" in metrics
        counted.append((expected.tokens, choice["logprobs"]["text_offset"], reply["usage"], by_token["usage"]))
    assert counted[0] == counted[1]


def test_a_trace_shows_every_round(running: tuple[Server, str], decoder: SpeculativeDecoder) -> None:
    body = {"prompt": QUESTION, "max_tokens": 24, "seed": 4, "speculation": {"trace": True}}
    reply = http.post(f"{running[1]}/v1/completions", json=body).json()
    (choice,) = reply["choices"]
    emitted = [token for round in choice["rounds"] for token in round["emitted"]]
    tokens = [token["token"] for token in emitted]
    assert tokens == decoder.generate(QUESTION, chat=False, seed=4, max_new_tokens=24).tokens
    assert choice["rounds"][0]["stopped_by"] == "prompt"
    drafted = [token for round in choice["rounds"] for token in round["drafted"]]
    assert drafted
    assert all(0 <= token["p"] <= 1 and 0 < token["q"] <= 1 for token in drafted)
    assert all(
        [token["position"] for token in round["drafted"]] == list(range(len(round["drafted"])))
        for round in choice["rounds"]
    )
    predicted = [token["predicted"] for token in drafted if token["predicted"] is not None]
    assert predicted
    assert all(0 < probability < 1 for probability in predicted)
    report = reply["metrics"]["speculative_decoding"]
    assert report["num_draft_tokens"] == len(drafted)
    assert report["num_accepted_tokens"] == sum(token["accepted"] for token in drafted)
    assert report["per_step_accepted"] == [
        sum(token["accepted"] for token in round["drafted"]) for round in choice["rounds"] if round["drafted"]
    ]
    plain = http.post(f"{running[1]}/v1/completions", json=body | {"speculation": {"length": "none"}}).json()
    assert plain["metrics"]["speculative_decoding"]["num_drafts"] == 0


def test_copies_are_recorded_without_the_predictions_of_other_tokens() -> None:
    decoder = SpeculativeDecoder.from_pretrained(
        "tiny", "tiny-draft+ngram", length="tiny-lag-free", cost=0.2, verifier="token-wise"
    )
    body = {"prompt": "SELECT name FROM users;\n" * 4, "max_tokens": 60, "seed": 0, "speculation": {"trace": True}}
    with serving(decoder) as (_, address):
        (choice,) = http.post(f"{address}/v1/completions", json=body | {"temperature": 0.7}).json()["choices"]
    copies = {token["predicted"] for round in choice["rounds"] for token in round["drafted"] if token["q"] == 1}
    assert copies == {None}


def test_metrics_count_what_was_served(decoder: SpeculativeDecoder) -> None:
    with serving(decoder) as (_, address):
        body = {"prompt": QUESTION, "max_tokens": 24, "seed": 4, "n": 2}
        report = http.post(f"{address}/v1/completions", json=body).json()["metrics"]["speculative_decoding"]
        http.post(f"{address}/v1/completions", json={"prompt": QUESTION, "max_tokens": -1})
        lines = http.get(f"{address}/metrics").text.splitlines()
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    assert values["specpilot:spec_decode_num_drafts_total"] == report["num_drafts"]
    assert values["specpilot:spec_decode_num_draft_tokens_total"] == report["num_draft_tokens"]
    assert values["specpilot:spec_decode_num_accepted_tokens_total"] == report["num_accepted_tokens"]
    for position, count in enumerate(report["num_accepted_tokens_per_pos"]):
        name = f'specpilot:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}'
        assert values[name] == count
    assert values["specpilot:time_to_first_token_seconds_count"] == 2
    assert values['specpilot:request_refused_total{status="400"}'] == 1
    assert values["specpilot:num_requests_running"] == 0


def test_a_client_that_leaves_frees_its_place(running: tuple[Server, str]) -> None:
    server, address = running
    body = {"prompt": QUESTION, "max_tokens": 400, "n": 4, "temperature": 2.0, "stream": True}
    with http.stream("POST", f"{address}/v1/completions", json=body) as response:
        lines = response.iter_lines()  # kept: the connection closes with its iterator
        next(lines)
    wait_until(lambda: server.worker.running == 0 and not server.worker.jobs)
    with http.stream("POST", f"{address}/v1/completions", json=body | {"n": 64, "ignore_eos": True}) as response:
        lines = response.iter_lines()
        next(lines)
        with pytest.raises(httpx.ReadTimeout):
            http.post(f"{address}/v1/completions", json=body | {"stream": False, "n": 64}, timeout=0.2)
        wait_until(lambda: server.worker.waiting == 0)
        assert server.worker.running == 64
    wait_until(lambda: server.worker.running == 0 and not server.worker.jobs)


def test_texts_wait_in_turn_or_the_limit_is_named(decoder: SpeculativeDecoder) -> None:
    most = decoder.scheduler.max_running
    with serving(decoder, max_queue=8) as (_, address):
        body = {"prompt": [QUESTION] * 8, "max_tokens": 2, "n": most // 8 + 1}
        reply = http.post(f"{address}/v1/completions", json=body)
        assert (reply.status_code, len(reply.json()["choices"])) == (200, most + 8)
        for path, content in (
            ("completions", {"prompt": [QUESTION] * 8}),
            ("chat/completions", {"messages": MESSAGES}),
        ):
            reply = http.post(f"{address}/v1/{path}", json=content | {"max_tokens": 2, "n": 128})
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "too_many_texts")
            assert f"runs and queues at most {most + 8}" in reply.json()["error"]["message"]


def test_time_is_limited(decoder: SpeculativeDecoder) -> None:
    with serving(decoder, time_limit=1e-6) as (_, address):
        body = {"prompt": QUESTION, "max_tokens": 300}
        reply = http.post(f"{address}/v1/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["type"]) == (408, "timeout_error")
        text = http.post(f"{address}/v1/completions", json=body | {"stream": True}).text
        assert '"type":"timeout_error"' in text
        assert text.endswith("data: [DONE]\n\n")


def test_a_failing_request_fails_alone(decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(decoder) as (_, address):
        body = {"prompt": QUESTION, "max_tokens": 8, "seed": 1}
        before = http.post(f"{address}/v1/completions", json=body).json()["choices"]
        with monkeypatch.context() as patch:
            patch.setattr(type(decoder.target), "forward", broken)
            reply = http.post(f"{address}/v1/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["message"]) == (500, "decoding failed: out of memory")
        with monkeypatch.context() as patch:
            patch.setattr(TextStream, "push", broken)
            (error,) = chunks_of(http.post(f"{address}/v1/completions", json=body | {"stream": True}).text)
        assert error["error"]["message"] == "internal error: RuntimeError"
        assert http.post(f"{address}/v1/completions", json=body).json()["choices"] == before


def broken(*_: object) -> None:
    raise RuntimeError("out of memory")


def test_keys(decoder: SpeculativeDecoder) -> None:
    with serving(decoder, api_key="secret") as (_, address):
        assert http.get(f"{address}/health").status_code == 200
        for path in ("/", "/v1/models", "/metrics", "/nowhere"):
            refused = http.get(f"{address}{path}", headers={"Authorization": "Bearer Secret"})
            assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert http.get(f"{address}/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert http.get(f"{address}/", auth=("anyone", "secret")).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{address}/v1", api_key="wrong").models.list()


def test_a_controller_is_loaded_again(running: tuple[Server, str], decoder: SpeculativeDecoder) -> None:
    server, address = running
    before = decoder.length
    card = http.post(f"{address}/v1/controllers/reload").json()
    assert (card["name"], card["kind"], card["reloads"]) == ("tiny-lag-free", "RateOptimal", server.reloads)
    assert decoder.length is not before
    assert http.get(f"{address}/v1/controllers").json() == card


def test_a_controller_is_loaded_again_with_its_threshold() -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="tiny-head", threshold=0.31)
    with serving(decoder, length="tiny-head", threshold=0.31) as (_, address):
        assert http.post(f"{address}/v1/controllers/reload").status_code == 200
    assert isinstance(decoder.length, AcceptanceLength)
    assert decoder.length.threshold == 0.31


def test_a_controller_of_another_pair_is_refused(decoder: SpeculativeDecoder) -> None:
    other = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft-math", length=2)
    with serving(other, length="tiny-head", threshold=0.5) as (_, address):
        reply = http.post(f"{address}/v1/controllers/reload")
        assert reply.status_code == 409
        assert "the server keeps its controller" in reply.json()["error"]["message"]
        assert http.get(f"{address}/v1/controllers").json()["kind"] == "Fixed"


def late_end(text: str) -> str:
    """Return three characters of the text's second half that do not occur earlier."""
    return next(stop for i in range(len(text) // 2, len(text)) if text.index(stop := text[i : i + 3]) == i)


def test_served_rounds_are_a_dataset(tmp_path: Path) -> None:
    decoder = SpeculativeDecoder.from_pretrained(
        "tiny", "tiny-draft", length="tiny-lag-free", cost=0.2, verifier="token-wise"
    )
    texts = []
    for seed in (0, 5):  # a server, and one that is started again
        log = RoundLog(tmp_path / "log", decoder, "tiny", "tiny-draft", shard_size=2)
        with serving(decoder, log=log) as (_, address):
            body = {"messages": MESSAGES, "max_tokens": 24}
            for i in range(3):
                reply = http.post(f"{address}/v1/chat/completions", json=body | {"seed": seed + i}).json()
                texts.append(reply["choices"][0]["message"]["content"])
            for other in ({"temperature": 0.3}, {"temperature": 0}, {"temperature": 0, "top_k": 5}):  # the last are one
                http.post(f"{address}/v1/chat/completions", json=body | other)
            stop = late_end(texts[-3])  # so that rounds before it have drafts, as those of texts that are kept
            cut = http.post(f"{address}/v1/chat/completions", json=body | {"seed": seed, "stop": stop}).json()
            assert cut["choices"][0]["message"]["content"] == texts[-3].partition(stop)[0]
            assert 8 < cut["usage"]["completion_tokens"] < 24
    rows = read_dataset(tmp_path / "log", RoundsRow)
    assert [decoder.tokenizer.decode(row.x, skip_special_tokens=True) for row in rows] == texts
    assert len({row.prompt_id for row in rows}) == 6
    manifest = read_manifest(tmp_path / "log")
    assert manifest.complete
    assert [shard.rows for shard in manifest.shards] == [2, 1, 2, 1]
    other_folders = [reply.parent for reply in (tmp_path / "log").glob("*/manifest.json")]  # of other distributions
    rows_of = {
        read_manifest(folder).sampling.temperature: len(read_dataset(folder, RoundsRow)) for folder in other_folders
    }
    assert rows_of == {0.3: 2, 0: 4}
    data = read_labelled([str(tmp_path / "log")], CompareOptions(length="3"))
    assert (data.drafted.acceptance()["temperature"].keys(), len(data.texts)) == ({"0", "0.3", "1"}, 12)


BAD: list[tuple[str, Any, int, str]] = [
    ("completions", b"{", 400, "body: not JSON"),
    ("completions", b'{"prompt": "\xff"}', 400, "body: is not UTF-8"),
    ("completions", b"[]", 400, "body: an object of keys and values is expected, not a list"),
    ("completions", b'{"prompt": "a", "temperature": NaN}', 400, "temperature=NaN:"),
    ("completions", b"x" * (1 << 20 | 1), 413, "body: is longer than"),
    ("completions", {}, 400, "prompt: is missing"),
    ("completions", {"prompt": [5000]}, 400, "prompt"),
    ("completions", {"prompt": "a", "max_tokens": "5"}, 400, 'max_tokens="5":'),
    ("completions", {"prompt": "a", "max_tokens": 5000}, 400, "the context holds 512 tokens"),
    ("completions", {"prompt": "word " * 600}, 400, "tokens: the context holds 512 tokens"),
    ("completions", {"prompt": "a" * 900_000}, 400, "900000 characters, but the context holds 512"),
    ("completions", {"prompt": "a", "temperature": -0.1}, 400, "temperature=-0.1:"),
    ("completions", {"prompt": "a", "echo": True}, 400, "echo=true:"),
    ("completions", {"prompt": "a", "model": "gpt"}, 404, "model='gpt':"),
    ("completions", {"prompt": "a", "speculation": {"length": "tiny-head"}}, 400, "speculation.length='tiny-head'"),
    ("completions", {"prompt": "a", "speculation": {"length": "confidence:7"}}, 400, "7"),
    ("completions", {"prompt": "a", "speculation": {"length": "this:Class"}}, 400, "must be a number or a rule"),
    ("completions", {"prompt": "a", "model": "\U0001f600"}, 404, "this server has the model"),
    ("chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 99}, 400, "top_logprobs=99:"),
    ("controllers/reload", b" " * (1 << 20 | 1), 413, "body: is longer than"),
    ("controllers/reload", {"length": "other"}, 400, "length: unknown field"),
    ("nowhere", {}, 404, "/v1/nowhere: no such path"),
    ("responses", {"model": "tiny", "input": QUESTION}, 404, "send requests to /v1/chat/completions"),
    ("models", {}, 405, "POST /v1/models: use GET, HEAD"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "message"), BAD, ids=[f"{i}-{row[3]}" for i, row in enumerate(BAD)])
def test_bad_requests(running: tuple[Server, str], path: str, body: Any, status: int, message: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = http.post(f"{running[1]}/v1/{path}", content=content)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_rounds_of_shared_noise_are_not_logged(tmp_path: Path) -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=4)
    log = RoundLog(tmp_path / "log", decoder, "tiny", "tiny-draft", shard_size=2)
    with serving(decoder, log=log) as (_, address):
        for more in ({"seed": 1}, {}, {"seed": 2, "temperature": 0}):
            http.post(f"{address}/v1/completions", json={"prompt": "12 plus 30", "max_tokens": 16} | more)
    assert len(read_dataset(tmp_path / "log", RoundsRow)) == 1
    assert len(read_dataset(tmp_path / "log" / "temperature-0", RoundsRow)) == 1
