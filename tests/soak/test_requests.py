"""Requests of all kinds through one server: right texts, none is lost, and memory stays flat."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from specpilot.compare.engines.http_client import complete
from specpilot.infer.decoder import SpeculativeDecoder

from .servers import Serving

pytestmark = pytest.mark.timeout(3600)

REQUESTS = 200  # for each kill that other tests try
ROUND = 100  # requests between two readings of memory
GROWTH = 0.2  # of the resident memory, from the first fifth of the readings to the last one
PAIR = "tiny", "tiny-draft"
PROMPTS = (
    "What is 12 plus 30?", "Write a line about rain.", "List the files of a folder.", "a", "Select all rows.",
    "Ana has 3 apples and buys 4 more. How many has she?",
)  # fmt: skip
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 16}


def resident(process: int) -> float:
    """Resident memory of a process in MiB."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def assert_flat(readings: list[float]) -> None:
    assert readings[-1] <= (1 + GROWTH) * readings[len(readings) // 5], readings


GOOD = 0.7  # of the requests to the server
AT_ONCE = 48
PATH = "/v1/completions"
Client = Callable[[int, dict[str, Any], str], Awaitable[bool]]  # (port, body, right text) → whether it went well


async def good(port: int, body: dict[str, Any], text: str) -> bool:
    for _ in range(100):
        answer = await complete(port, body)
        if answer.status != 429:
            return (answer.status, answer.text) == (200, text)
        await asyncio.sleep(0.1)
    return False


async def slow(port: int, body: dict[str, Any], text: str) -> bool:
    answer = await complete(port, body, slow=0.02)
    return answer.status == 429 or (answer.status, answer.text) == (200, text)


def raw(change: Callable[[dict[str, Any]], bytes], expected: tuple[int, ...] = (), read: int | None = None) -> Client:
    """A client that sends bytes, and gets one of these statuses or leaves after it has ``read`` so many bytes."""

    async def client(port: int, body: dict[str, Any], text: str) -> bool:
        return await send(port, change(body), read=read) in expected or read is not None

    return client


def message(path: str, body: bytes) -> bytes:
    """A POST request."""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def send(port: int, content: bytes, *, read: int | None = None) -> int:
    """Send raw bytes; returns the status of the answer, 0 without one.

    Args:
        read: leave after so many bytes of the answer; None reads it all.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
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


def request(body: dict[str, Any], **changes: Any) -> bytes:
    return message(PATH, json.dumps(body | changes).encode())


CLIENTS: dict[str, Client] = {
    "good": good,
    "slow": slow,
    "leaves": raw(lambda body: request(body, stream=True, max_tokens=256), read=100),
    "leaves at once": raw(request, read=0),
    "half a body": raw(lambda body: request(body)[: len(request(body)) // 2], read=0),
    "rubbish": raw(lambda body: bytes(range(256)) * 4 + b"\r\n\r\n", (0, 400)),
    "no JSON": raw(lambda body: message(PATH, b'{"prompt": "a", '), (400,)),
    "wrong value": raw(lambda body: request(body, temperature="hot"), (400,)),
    # The server may answer and close before it has read all: the client then sees a broken connection.
    "five megabytes": raw(lambda body: request(body, prompt="a" * (5 << 20)), (0, 400, 413)),
}


def test_through_a_server(kills: int) -> None:
    """Good requests are greedy, so that each has one right text, whatever shares its rounds."""
    decoder = SpeculativeDecoder.from_pretrained(*PAIR)
    texts = {prompt: decoder.generate(prompt, **GREEDY).text for prompt in PROMPTS}
    server, readings, kinds = Serving(None), list[float](), drawn_kinds()
    assert server.port is not None, server.process.end()
    for _ in range(0, REQUESTS * kills, ROUND):
        failed = asyncio.run(ask(server.port, [*islice(kinds, ROUND)], texts))
        assert failed == []
        readings.append(resident(server.process.pid))
    server.stop()
    assert_flat(readings)


def drawn_kinds() -> Iterator[str]:
    random, bad = Random(0), (1 - GOOD) / (len(CLIENTS) - 1)
    while True:
        yield random.choices([*CLIENTS], [GOOD, *[bad] * (len(CLIENTS) - 1)])[0]


async def ask(port: int, kinds: list[str], texts: dict[str, str]) -> list[str]:
    """Send requests of these kinds; returns the kinds of those that did not go well."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(i: int, kind: str) -> bool:
        prompt = PROMPTS[i % len(PROMPTS)]
        async with gate:
            body = {"prompt": prompt, "max_tokens": GREEDY["max_new_tokens"], "temperature": 0}
            return await CLIENTS[kind](port, body, texts[prompt])

    went_well = await asyncio.gather(*(one(i, kind) for i, kind in enumerate(kinds)))
    return [kind for kind, well in zip(kinds, went_well, strict=True) if not well]
