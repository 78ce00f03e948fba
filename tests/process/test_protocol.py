"""Requests of clients: fields without an effect are accepted, and unsupported fields are refused by name."""

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types import chat, completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from specpilot import SpeculativeDecoder
from specpilot.infer.prompting import text_of
from specpilot.serve.errors import ApiError
from specpilot.serve.protocol import (
    IGNORED,
    NEUTRAL,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    parse_request,
)

from ..helpers.serving import PATIENCE, serving

USER = {"role": "user", "content": "What is 12 plus 30?"}
# Answers as clients send them back in the next turn.
ANSWERS: dict[str, dict[str, Any]] = {
    "every field of the openai client": dict.fromkeys(chat.ChatCompletionMessage.model_fields) | {"content": "42"},
    "LangChain, of blocks": {"content": [{"type": "text", "text": "42", "annotations": [], "id": "lc_1", "index": 0}]},
    "LiteLLM": {"content": "42", "provider_specific_fields": {"refusal": None}, "images": [], "annotations": []},
    "vLLM": {"content": "42", "refusal": None, "tool_calls": [], "reasoning": None, "reasoning_content": None},
    "cached": {"content": [{"type": "text", "text": "42", "cache_control": {"type": "ephemeral"}}]},
    "several parts": {"content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]},
}


def parse(kind: type[GenerationRequest], **fields: Any) -> Any:
    return parse_request(kind, json.dumps(fields).encode())


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_answers_come_back(answer: dict[str, Any]) -> None:
    parsed = parse(ChatCompletionRequest, messages=[USER, answer | {"role": "assistant"}, USER])
    assert parsed.messages[0].to_dict() == USER
    assert text_of(parsed.messages[1].to_dict()["content"]).replace("\n", "") == "42"
    assert set(parsed.messages[1].to_dict()) == {"role", "content"}


def test_reasoning_goes_to_the_template_and_no_text_is_empty() -> None:
    for name in ("reasoning", "reasoning_content"):
        answer = {"role": "assistant", "content": None, name: "12 + 30"}
        (message,) = parse(ChatCompletionRequest, messages=[answer]).messages
        assert message.to_dict() == {"role": "assistant", "content": "", "reasoning_content": "12 + 30"}


# Fields that change nothing, as LangChain, LlamaIndex, LiteLLM, vLLM's and llama.cpp's clients send them
EMPTY: list[dict[str, Any]] = [
    {"metadata": {"run": 1}, "user": "me", "store": True, "service_tier": "flex", "safety_identifier": "x"},
    {"prompt_cache_key": "a", "prompt_cache_retention": "24h", "parallel_tool_calls": False},
    {"tools": [], "tool_choice": "auto", "functions": [], "function_call": "none", "response_format": {"type": "text"}},
    {"logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "modalities": ["text"], "verbosity": "medium"},
    {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    {"stream": None, "stream_options": None, "stop": None, "n": None, "seed": None, "temperature": None},
    {"min_p": 0, "repetition_penalty": 1.0, "chat_template_kwargs": {}, "cache_prompt": True, "request_id": "r"},
    {"bad_words": [], "add_special_tokens": True, "detokenize": True, "early_stopping": False, "typical_p": 1.0},
    {"something_new": None},
]
# Fields that would change the text: refused with their name
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
    ({"presence_penalty": True}, "presence_penalty"),
    ({"something_new": 0}, "something_new"),
    ({"n": 129}, "n"),
    ({"stream_options": {"chunks": 1}}, "stream_options.chunks"),
    ({"messages": [USER, {"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}]}, "messages.1.tool_calls"),
    ({"messages": [USER, {"role": "assistant", "refusal": "No."}]}, "messages.1.refusal"),
    ({"messages": [USER, {"role": "tool", "content": "a", "tool_call_id": "1"}]}, "messages.1.role"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
]  # fmt: skip


@pytest.mark.parametrize("fields", EMPTY, ids=lambda fields: next(iter(fields)))
def test_neutral_fields_are_accepted(fields: dict[str, Any]) -> None:
    parse(ChatCompletionRequest, messages=[USER], **fields)
    parse(CompletionRequest, prompt="a", **fields)


@pytest.mark.parametrize(("fields", "name"), UNSUPPORTED, ids=[row[1] for row in UNSUPPORTED])
def test_unsupported_fields_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ApiError) as raised:
        parse(ChatCompletionRequest, **{"messages": [USER]} | fields)
    assert raised.value.status == 400
    assert raised.value.body["error"]["param"] == name
    assert raised.value.body["error"]["message"].startswith(name)


def test_best_of_is_all_that_is_generated() -> None:
    assert parse(CompletionRequest, prompt="a", n=2, best_of=2).n == 2
    with pytest.raises(ApiError, match="best_of=3:"):
        parse(CompletionRequest, prompt="a", n=2, best_of=3)


@pytest.mark.parametrize(
    ("kind", "client_type"),
    [
        (ChatCompletionRequest, chat_create_params.CompletionCreateParamsBase),
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
    ],
)
def test_every_field_of_the_openai_client_is_known(kind: type[GenerationRequest], client_type: type) -> None:
    required: dict[str, Any] = {"messages": [USER]} if kind is ChatCompletionRequest else {"prompt": "a"}
    for name in client_type.__annotations__:
        if name not in IGNORED and name not in required:
            with pytest.raises(ApiError) as raised:
                parse(kind, **required | {name: [0]})
            assert raised.value.code != "unknown_field", name


HALVES: list[tuple[str, str]] = [
    (r'{"prompt": "a\ud83d"}', r"body: prompt: character 2 is '\ud83d'"),
    (r'{"prompt": "a", "stop": ["\ud83d"]}', "stop.0: character 1"),
    (r'{"prompt": "a", "\ud83d": 1}', r"key '\ud83d': character 1"),
    (r'{"prompt": "a", "metadata": {"\ud83d": "\ud83d"}}', r"key '\ud83d': character 1"),
    (r'{"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud83d"}]}]}', "messages.0.content.0.text"),
]


@pytest.mark.parametrize(("body", "message"), HALVES)
def test_half_a_character_is_refused(body: str, message: str) -> None:
    with pytest.raises(ApiError) as raised:
        parse_request(CompletionRequest, body.encode())
    assert raised.value.status == 400
    assert message in raised.value.body["error"]["message"]
    json.dumps(raised.value.body, ensure_ascii=False).encode()


def test_whole_characters_are_read() -> None:
    body = r'{"prompt": "\ud83d\ude00 \\ud83d", "user": "\u00e9"}'
    assert parse_request(CompletionRequest, body.encode()).prompt == "😀 \\ud83d"


# Random bodies: each is answered, or refused with a status of 4xx in OpenAI's format, never with 500


EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))

GOOD = st.sampled_from(["a", "What is 2 + 2?", "é😀\n", "<|endoftext|>", "{{ x }} \0"])
TEXTS = GOOD | GOOD | GOOD | st.sampled_from(["", " ", "\ud83d", "\ude00a", "a" * 5000])
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 8, 127, 10**6, 2**31, 2**63, 2**64, 10**30, -(10**30)])
FLOATS = st.sampled_from([-1.0, 0.0, 5e-324, 1e-300, 1e-9, 0.3, 0.7, 1, 1.5, 2.0, 1e30, 1e308])
ATOMS = st.none() | st.booleans() | NUMBERS | FLOATS | TEXTS
JSON = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "\ud83d"]), inner)
)
IDS = st.lists(st.integers(0, 500), max_size=4) | st.lists(NUMBERS, max_size=2)
FITTING: dict[str, st.SearchStrategy[Any]] = {  # values that a field takes, or nearly
    "prompt": TEXTS | IDS | st.lists(TEXTS | IDS, max_size=3) | st.lists(IDS, max_size=3),
    "temperature": FLOATS,
    "top_p": FLOATS,
    "top_k": NUMBERS,
    "seed": NUMBERS,
    "n": st.integers(0, 5),
    "best_of": st.integers(0, 3),
    "logprobs": st.integers(0, 3) | st.booleans(),
    "top_logprobs": st.integers(0, 21),
    "stop": TEXTS | st.lists(TEXTS, max_size=3),
    "stream": st.booleans(),
    "stream_options": st.dictionaries(st.sampled_from(["include_usage", "continuous_usage_stats"]), st.booleans()),
    "speculation": st.fixed_dictionaries(
        {"length": st.sampled_from(["none", "3", "confidence:0.4", "oracle", "x", 5, 10**400, "²", "--5"]) | st.none()},
        optional={"trace": st.booleans()},
    ),
    "max_tokens": st.integers(0, 9) | NUMBERS,
    "role": st.sampled_from(["user", "user", "assistant", "system", "developer", "tool"]),
    "type": st.just("text"),
    "model": st.just("tiny"),
} | {name: st.sampled_from([None, *values, True, "x", 0.5]) for name, values in NEUTRAL.items()}


def objects(names: list[str], **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw objects with the fields ``given``, some fields of ``names``, and a few wrong or unknown fields."""
    extra_fields = st.lists(st.sampled_from(names), max_size=3).flatmap(
        lambda some: st.fixed_dictionaries({name: FITTING.get(name, ATOMS) for name in some})
    )
    strange = st.dictionaries(st.sampled_from([*names, *strategies, "\ud83d", "", "a.b"]), JSON, min_size=1, max_size=1)
    plain = st.tuples(extra_fields, st.fixed_dictionaries(strategies)).map(lambda two: two[0] | two[1])
    return plain | plain | plain | st.tuples(plain, strange).map(lambda two: two[0] | two[1])


PARTS = objects(["annotations", "id"], type=FITTING["type"], text=TEXTS)
MESSAGE = objects(
    ["tool_calls", "refusal", "name", "id"], role=FITTING["role"], content=TEXTS | st.lists(PARTS, max_size=2)
)
MESSAGES = st.lists(MESSAGE, max_size=3)
BODIES = {
    path: objects([*kind.model_fields, *NEUTRAL, *sorted(IGNORED)], **{name: strategy}, max_tokens=st.integers(1, 9))
    for path, kind, name, strategy in (
        ("completions", CompletionRequest, "prompt", FITTING["prompt"]),
        ("chat/completions", ChatCompletionRequest, "messages", MESSAGES),
    )
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=3)
    with serving(decoder, max_queue=8) as (_, address), httpx.Client(timeout=PATIENCE) as connection:
        connection.base_url = httpx.URL(f"{address}/v1/")
        yield connection


@pytest.mark.parametrize("path", BODIES)
def test_any_body_is_answered_or_refused(client: httpx.Client, path: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES == 40)
    @given(BODIES[path])
    def check(body: dict[str, Any]) -> None:
        answer = client.post(path, content=json.dumps(body).encode())
        assert answer.status_code in (200, 400, 404), answer.text
        if answer.status_code == 200:
            assert answer.headers["content-type"].startswith("text/event-stream") == bool(body.get("stream"))
            assert "error" not in answer.text or not body.get("stream")
            return
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert "\n" not in error["message"]

    check()
