"""Requests of all kinds through one server: right texts, none is lost, and memory stays flat."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from specpilot.infer.decoder import SpeculativeDecoder

from experiments.studies.serve_load import client, complete

from ..helpers.server_process import server_process

pytestmark = pytest.mark.timeout(3600)

REQUESTS = 200  # for each kill that other tests try
ROUND = 100  # requests between two readings of memory
GROWTH = 0.2  # of the resident memory, from the first fifth of the readings to the last one
AT_ONCE = 48
GOOD = 0.7  # of the requests
PROMPTS = (
    "What is 12 plus 30?", "Write a line about rain.", "List the files of a folder.", "a", "Select all rows.",
    "Ana has 3 apples and buys 4 more. How many has she?",
)  # fmt: skip
Client = Callable[[int, dict[str, Any], str], Awaitable[bool]]  # (port, body, right text) → whether it went well


async def good(port: int, body: dict[str, Any], text: str, slow: float = 0.0) -> bool:
    for _ in range(100):
        answer = await complete(port, body, slow=slow)
        if answer.status != 429:
            return (answer.status, answer.text) == (200, text)
        await asyncio.sleep(0.1)
    return False


async def leaves(port: int, body: dict[str, Any], text: str) -> bool:
    """Send a request, and close the connection after the first bytes of a long answer."""
    long = body | {"stream": True, "max_tokens": 256}
    async with client(port) as connection, connection.stream("POST", "/v1/completions", json=long) as answer:
        await anext(answer.aiter_raw(), b"")
    return True


def refused(changes: dict[str, Any], *statuses: int) -> Client:
    """A client whose request gets one of these statuses."""

    async def send(port: int, body: dict[str, Any], text: str) -> bool:
        return (await complete(port, body | changes)).status in statuses

    return send


CLIENTS: dict[str, Client] = {
    "good": good,
    "slow": partial(good, slow=0.02),
    "leaves": leaves,
    "wrong value": refused({"temperature": "hot"}, 400),
    # The server may answer and close before it has read all: the client then sees a broken connection.
    "five megabytes": refused({"prompt": "a" * (5 << 20)}, 0, 400, 413),
}


async def failures(port: int, texts: dict[str, str], random: Random) -> list[str]:
    """Send requests of random kinds; returns the kinds of those that did not go well."""
    gate, bad = asyncio.Semaphore(AT_ONCE), (1 - GOOD) / (len(CLIENTS) - 1)
    kinds = random.choices([*CLIENTS], [GOOD, *[bad] * (len(CLIENTS) - 1)], k=ROUND)

    async def is_answered(i: int, kind: str) -> bool:
        prompt = PROMPTS[i % len(PROMPTS)]
        async with gate:
            body = {"prompt": prompt, "max_tokens": 16, "temperature": 0}
            return await CLIENTS[kind](port, body, texts[prompt])

    went_well = await asyncio.gather(*(is_answered(i, kind) for i, kind in enumerate(kinds)))
    return [kind for kind, well in zip(kinds, went_well, strict=True) if not well]


def resident(pid: int) -> int:
    """Return the resident memory of a process, in pages."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


def test_mixed_requests(kills: int, tmp_path: Path) -> None:
    """Valid requests are greedy, so that each has one right text in any batch."""
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft")
    texts = {prompt: decoder.generate(prompt, chat=False, temperature=0, max_new_tokens=16).text for prompt in PROMPTS}
    readings, random = list[int](), Random(0)
    with server_process(tmp_path) as (server, address):
        for _ in range(0, REQUESTS * kills, ROUND):
            assert asyncio.run(failures(int(address.rpartition(":")[2]), texts, random)) == []
            readings.append(resident(server.pid))
    assert readings[-1] <= (1 + GROWTH) * readings[len(readings) // 5], readings
