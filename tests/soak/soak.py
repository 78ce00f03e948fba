"""``specpilot bench soak``: thousands of requests to one server by clients of all manners; nothing may be lost.

Good requests are greedy, so that each has one right text, whatever shares its rounds. Between them are clients that
leave, send half a body, rubbish, wrong JSON, five megabytes, wrong values, or read slowly.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from rich.console import Console
from specpilot.common.progress import progress_bar
from specpilot.compare.engines.http_client import complete, message, send
from specpilot.compare.engines.serve import pair_words, running
from specpilot.compare.load import load
from specpilot.infer.decoder import SpeculativeDecoder

from experiments.options import SoakOptions

from .memory import resident

BATCH = 500  # requests between two readings of memory
AT_ONCE = 48
PATH = "/v1/completions"
LARGE = 5 << 20  # bytes of a prompt that is refused
GOOD = 0.7  # of the requests
STEADY = 2000  # requests after which memory may not grow
Outcome = tuple[str, bool]  # kind of client, and whether it came to what it should


def bench_soak(options: SoakOptions, console: Console) -> dict[str, Any]:
    """Run the campaign against a server of its own process."""
    decoder, prompts = load(options)
    expected = _expected(decoder, prompts, options)
    words = [*pair_words(options), "--length", options.length, "--cost", str(options.cost or "auto")]
    random, outcomes, memory = Random(0), Counter[Outcome](), []
    with running(words) as server, progress_bar(console, "requests", options.requests) as advance:
        for done in range(0, options.requests, BATCH):
            count = min(BATCH, options.requests - done)
            kinds = random.choices([*CLIENTS], [GOOD, *[(1 - GOOD) / (len(CLIENTS) - 1)] * (len(CLIENTS) - 1)], k=count)
            outcomes.update(asyncio.run(_batch(server.port, kinds, prompts, expected, options, advance)))
            memory.append({"requests": done + count, "resident_mib": resident(server.process.pid)})
        exit_code = server.stop()
    steady = [one["resident_mib"] for one in memory if one["requests"] >= min(STEADY, options.requests)]
    return {
        "requests": options.requests,
        "lost": sum(count for (kind, right), count in outcomes.items() if kind not in ("good", "slow") and not right),
        "garbled": sum(count for (kind, right), count in outcomes.items() if kind in ("good", "slow") and not right),
        "rss_growth": steady[-1] / steady[0] - 1,
        "exit_code": exit_code,
        "clients": {kind: sum(count for (name, _), count in outcomes.items() if name == kind) for kind in CLIENTS},
        "memory": memory,
    }


def _expected(decoder: SpeculativeDecoder, prompts: list[list[int]], options: SoakOptions) -> list[str]:
    sampling: dict[str, Any] = options.sampling | {"temperature": 0}
    return [decoder.generate(prompt, **sampling).text for prompt in prompts]


async def _batch(
    port: int,
    kinds: list[str],
    prompts: list[list[int]],
    expected: list[str],
    options: SoakOptions,
    advance: Callable[[], None],
) -> list[Outcome]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(i: int, kind: str) -> Outcome:
        async with gate:
            place = i % len(prompts)
            body = {"prompt": prompts[place], "max_tokens": options.max_new_tokens, "temperature": 0}
            right = await CLIENTS[kind](port, body, expected[place])
            advance()
            return kind, right

    return list(await asyncio.gather(*(one(i, kind) for i, kind in enumerate(kinds))))


async def _good(port: int, body: dict[str, Any], expected: str) -> bool:
    for _ in range(100):
        answer = await complete(port, body)
        if answer.status != 429:
            return answer.status == 200 and answer.text == expected
        await asyncio.sleep(0.1)
    return False


async def _slow(port: int, body: dict[str, Any], expected: str) -> bool:
    answer = await complete(port, body, slow=0.02)
    return answer.status == 429 or (answer.status == 200 and answer.text == expected)


async def _leaves(port: int, body: dict[str, Any], expected: str) -> bool:
    content = json.dumps(body | {"stream": True, "max_tokens": 256}).encode()
    await send(port, message(PATH, content), read=100)
    return True


async def _leaves_at_once(port: int, body: dict[str, Any], expected: str) -> bool:
    await send(port, message(PATH, json.dumps(body).encode()), read=0)
    return True


async def _half(port: int, body: dict[str, Any], expected: str) -> bool:
    content = message(PATH, json.dumps(body).encode())
    await send(port, content[: len(content) // 2], read=0)
    return True


async def _rubbish(port: int, body: dict[str, Any], expected: str) -> bool:
    return await send(port, bytes(range(256)) * 4 + b"\r\n\r\n") in (0, 400)


async def _no_json(port: int, body: dict[str, Any], expected: str) -> bool:
    return await send(port, message(PATH, b'{"prompt": "a", ')) == 400


async def _wrong(port: int, body: dict[str, Any], expected: str) -> bool:
    return await send(port, message(PATH, json.dumps(body | {"temperature": "hot"}).encode())) == 400


async def _large(port: int, body: dict[str, Any], expected: str) -> bool:
    # The server may answer and close before it has read all: the client then sees a broken connection.
    return await send(port, message(PATH, json.dumps(body | {"prompt": "a" * LARGE}).encode())) in (0, 400, 413)


CLIENTS: dict[str, Callable[[int, dict[str, Any], str], Awaitable[bool]]] = {
    "good": _good,
    "slow": _slow,
    "leaves": _leaves,
    "leaves at once": _leaves_at_once,
    "half a body": _half,
    "rubbish": _rubbish,
    "no JSON": _no_json,
    "wrong value": _wrong,
    "five megabytes": _large,
}
