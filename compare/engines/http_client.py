"""Streamed requests to a server that is measured, with the times of every event."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

PATH = "/v1/completions"


@dataclass
class Answer:
    """What a request came to.

    Attributes:
        status: of HTTP; 0 where the connection broke off.
        times: seconds from the beginning to each piece of text.
        tokens: of all choices, where the server reported them.
    """

    status: int = 0
    text: str = ""
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    error: str | None = None


def client(port: int) -> httpx.AsyncClient:
    """A client of a server on this machine, with a connection for each request and no time limit."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=None, verify=False)


async def complete(port: int, body: dict[str, Any], *, slow: float = 0.0) -> Answer:
    """A streamed completion.

    Args:
        slow: seconds to wait before reading each event.
    """
    started, answer, finished = time.perf_counter(), Answer(), False
    content = body | {"stream": True, "stream_options": {"include_usage": True}}
    try:
        async with client(port) as own, own.stream("POST", PATH, json=content) as response:
            answer.status = response.status_code
            async for line in response.aiter_lines():
                finished = finished or line == "data: [DONE]"
                if line.startswith("{") or (line.startswith("data: ") and not finished):
                    _take(answer, json.loads(line.removeprefix("data: ")), time.perf_counter() - started)
                if slow:
                    await asyncio.sleep(slow)
    except (httpx.HTTPError, ValueError):
        finished = False
    if answer.status == 200 and not finished:
        answer.status = 0
    answer.seconds = time.perf_counter() - started
    return answer


def _take(answer: Answer, chunk: dict[str, Any], seconds: float) -> None:
    if "error" in chunk:
        answer.error = chunk["error"]["message"]
        return
    for choice in chunk["choices"]:
        answer.text += choice["text"]
        answer.times.append(seconds)
    if "usage" in chunk:
        answer.tokens = chunk["usage"]["completion_tokens"]
