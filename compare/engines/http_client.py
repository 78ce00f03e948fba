"""A small HTTP client for measuring a server: one connection a request, times of every event, and bad behaviour."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

LIMIT = 1 << 24  # bytes of a line of a response


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


def message(path: str, body: bytes) -> bytes:
    """A POST request."""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def complete(port: int, body: dict[str, Any], *, slow: float = 0.0) -> Answer:
    """A streamed completion.

    Args:
        slow: seconds to wait before reading each event.
    """
    started, answer = time.perf_counter(), Answer()
    content = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
    try:
        writer.write(message("/v1/completions", content))
        await writer.drain()
        answer.status = int((await reader.readline()).split()[1])
        finished = False
        while line := await reader.readline():
            if line.startswith(b'{"error"'):
                answer.error = json.loads(line)["error"]["message"]
            if line.startswith(b"data: [DONE]"):
                finished = True
            elif line.startswith(b"data: "):
                _take(answer, json.loads(line[6:]), time.perf_counter() - started)
            if slow:
                await asyncio.sleep(slow)
        if answer.status == 200 and not finished:
            answer.status = 0
    except (OSError, IndexError, ValueError, asyncio.IncompleteReadError):
        answer.status = 0
    finally:
        writer.close()
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


async def whole(port: int, body: dict[str, Any]) -> dict[str, Any]:
    """A completion that is not streamed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
    try:
        writer.write(message("/v1/completions", json.dumps(body).encode()))
        await writer.drain()
        answer: dict[str, Any] = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
        return answer
    finally:
        writer.close()


async def send(port: int, content: bytes, *, read: int | None = None) -> int:
    """Send raw bytes; returns the status of the answer, 0 without one.

    Args:
        read: leave after so many bytes of the answer; None reads it all.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
    try:
        writer.write(content)
        await writer.drain()
        if read == 0:
            return 0
        first = await reader.readline()
        await reader.read(-1 if read is None else read)
        return int(first.split()[1]) if first else 0
    except (OSError, IndexError, ValueError):
        return 0
    finally:
        writer.close()
