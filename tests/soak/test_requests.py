"""Requests of all kinds through one server: right texts, none is lost, and memory stays flat."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from specpilot.compare.engines.serve import client, complete
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


def refused(changes: dict[str, Any], *statuses: int) -> Client:
    """A client whose request gets one of these statuses."""

    async def send(port: int, body: dict[str, Any], text: str) -> bool:
        return (await complete(port, body | changes)).status in statuses

    return send


async def leaves(port: int, body: dict[str, Any], text: str) -> bool:
    """After the first bytes of a long answer."""
    async with client(port) as own, own.stream("POST", PATH, json=body | {"stream": True, "max_tokens": 256}) as answer:
        await anext(answer.aiter_raw(), b"")
    return True


CLIENTS: dict[str, Client] = {
    "good": good,
    "slow": slow,
    "leaves": leaves,
    "wrong value": refused({"temperature": "hot"}, 400),
    # The server may answer and close before it has read all: the client then sees a broken connection.
    "five megabytes": refused({"prompt": "a" * (5 << 20)}, 0, 400, 413),
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
