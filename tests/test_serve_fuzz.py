"""Random bodies of requests: each is answered, or refused with a status of 4xx in OpenAI's format, never with 500."""

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from specpilot import SpeculativeDecoder
from specpilot.serve.protocol import IGNORED, NEUTRAL, ChatCompletionRequest, CompletionRequest

from .serving import PATIENCE, serving

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


def objects(names: list[str], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of the fields ``given``, some of ``names``, and a few that are wrong or unknown."""
    others = st.lists(st.sampled_from(names), max_size=3).flatmap(
        lambda some: st.fixed_dictionaries({name: FITTING.get(name, ATOMS) for name in some})
    )
    strange = st.dictionaries(st.sampled_from([*names, *given, "\ud83d", "", "a.b"]), JSON, min_size=1, max_size=1)
    plain = st.tuples(others, st.fixed_dictionaries(given)).map(lambda two: two[0] | two[1])
    return plain | plain | plain | st.tuples(plain, strange).map(lambda two: two[0] | two[1])


PARTS = objects(["annotations", "id"], type=FITTING["type"], text=TEXTS)
SAID = objects(
    ["tool_calls", "refusal", "name", "id"], role=FITTING["role"], content=TEXTS | st.lists(PARTS, max_size=2)
)
MESSAGES = st.lists(SAID, max_size=3)
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
    with serving(decoder, max_queue=8) as (_, address), httpx.Client(timeout=PATIENCE) as found:
        found.base_url = httpx.URL(f"{address}/v1/")
        yield found


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
