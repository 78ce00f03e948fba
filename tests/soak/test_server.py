"""Every fault befalls a server that logs its rounds, while clients wait for their texts; many requests of all kinds."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from specpilot.compare.engines.serve import client, complete
from specpilot.data_gen.kinds import RoundsRow, read_dataset
from specpilot.infer.decoder import SpeculativeDecoder

from ..folders import assert_whole
from ..processes import fill
from .disks import disk
from .servers import PROMPTS, Served, Serving

pytestmark = [pytest.mark.timeout(3600), pytest.mark.xdist_group("serve")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ended_by_a_signal(served: Served, number: int, kills: int, tmp_path: Path) -> None:
    """What was accepted is answered, then the server ends with exit code 0, unless it is killed.

    The next server continues the log.
    """
    random, log, killed = Random(number), tmp_path / "log", number == signal.SIGKILL
    for _ in range(kills):
        serving = Serving(log)
        answers = serving.load(random.uniform(0, (4 if killed else 1) * served.seconds), number)
        serving.process.send(number)
        ended = serving.process.end()
        assert (ended.code != 0, "Traceback" in ended.text) == (killed, False), ended
        for answer, text in zip(answers, served.texts, strict=True):
            cut = killed and answer.status != 200 and text.startswith(answer.text)
            assert cut or (answer.status, answer.text) in ((0, ""), (503, ""), (200, text))
        assert_whole(log)
    served.finish(log)


def test_a_full_disk(served: Served, tmp_path: Path) -> None:
    """The log's disk is full for two loads: texts go on, one line says so, and the log goes on when there is space."""
    with disk(tmp_path / "disk") as mounted:
        if not mounted:
            pytest.skip("no disk can be mounted here")
        log, filler = tmp_path / "disk" / "log", tmp_path / "disk" / "filler"
        serving = Serving(log)
        fill(filler)
        for _ in range(2):
            served.check(serving.load())
        assert_whole(log)
        assert serving.process.text.count("specpilot: error: ") == 1
        filler.unlink()
        served.check(serving.load())
        serving.stop()
        served.finish(log)
        assert len(read_dataset(log, RoundsRow)) >= 2 * served.logged


# Requests of all kinds: right texts, none is lost, and memory stays flat


MIXED = 200  # for each kill that other tests try
ROUND = 100  # requests between two readings of memory
GROWTH = 0.2  # of the resident memory, from the first fifth of the readings to the last one
PAIR = "tiny", "tiny-draft"
TOPICS = (*PROMPTS, "a", "Select all rows.", "Ana has 3 apples and buys 4 more. How many has she?")
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


async def good(port: int, body: dict[str, Any], text: str, slow: float = 0.0) -> bool:
    for _ in range(100):
        answer = await complete(port, body, slow=slow)
        if answer.status != 429:
            return (answer.status, answer.text) == (200, text)
        await asyncio.sleep(0.1)
    return False


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
    "slow": partial(good, slow=0.02),
    "leaves": leaves,
    "wrong value": refused({"temperature": "hot"}, 400),
    # The server may answer and close before it has read all: the client then sees a broken connection.
    "five megabytes": refused({"prompt": "a" * (5 << 20)}, 0, 400, 413),
}


def test_through_a_server(kills: int) -> None:
    """Good requests are greedy, so that each has one right text, whatever shares its rounds."""
    decoder = SpeculativeDecoder.from_pretrained(*PAIR)
    texts = {prompt: decoder.generate(prompt, **GREEDY).text for prompt in TOPICS}
    server, readings, kinds = Serving(None), list[float](), drawn_kinds()
    assert server.port is not None, server.process.end()
    for _ in range(0, MIXED * kills, ROUND):
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
        prompt = TOPICS[i % len(TOPICS)]
        async with gate:
            body = {"prompt": prompt, "max_tokens": GREEDY["max_new_tokens"], "temperature": 0}
            return await CLIENTS[kind](port, body, texts[prompt])

    went_well = await asyncio.gather(*(one(i, kind) for i, kind in enumerate(kinds)))
    return [kind for kind, well in zip(kinds, went_well, strict=True) if not well]
