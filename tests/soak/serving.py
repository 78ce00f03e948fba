"""Servers that log their rounds, the load that clients put on them, and whether texts and log are right."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specpilot.common.errors import InputError
from specpilot.compare.engines.http_client import Answer, complete
from specpilot.data_gen.on_policy import read_rounds

from .cases import Outcome
from .contents import damage
from .processes import Fault, Main, Process

WORDS = ("serve", "--length", "tiny-lag-free", "--cost", "0.2", "--port", "0", "--device", "cpu", "--log-rounds")
REQUESTS = 80  # of one load; 64 texts are a shard
AT_ONCE = 16
PROMPTS = ("What is 12 plus 30?", "Write a line about rain.", "List the files of a folder.")


@dataclass(frozen=True)
class Served:
    """What an undisturbed server answers to one load.

    Attributes:
        tokens: of the texts that it logs.
        logged: number of these texts; those without a draft are not logged.
        seconds: of the slowest request.
    """

    texts: list[str]
    tokens: set[tuple[int, ...]]
    logged: int
    seconds: float


class Serving:
    """A server with a log of its rounds.

    Attributes:
        port: None if it ended before it listened.
    """

    def __init__(self, main: Main, log: Path, fault: Fault | None = None) -> None:
        self.process = Process(main, [*WORDS, str(log)], log, fault)
        self.port: int | None = None
        while self.port is None and self.process.running():
            found = re.search(r"on http://127\.0\.0\.1:(\d+)", self.process.text)
            self.port = int(found[1]) if found else None
            self.process.wait(0.02)

    def load(self, after: float | None = None, do: Callable[[], None] = lambda: None) -> list[Answer]:
        """Send all requests; ``do`` something so many seconds later."""
        if self.port is None:
            return [Answer() for _ in range(REQUESTS)]
        return asyncio.run(_load(self.port, after, do))


async def _load(port: int, after: float | None, do: Callable[[], None]) -> list[Answer]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(i: int) -> Answer:
        body = {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 12, "temperature": 1.0, "seed": i}
        async with gate:
            try:
                return await complete(port, body)
            except OSError:  # nobody listens any more
                return Answer()

    tasks = [asyncio.ensure_future(one(i)) for i in range(REQUESTS)]
    if after is not None:
        await asyncio.sleep(after)
        do()
    return list(await asyncio.gather(*tasks))


def undisturbed_server(main: Main, folder: Path) -> Served:
    """Serve one load.

    Raises:
        InputError: a request fails, or the server does not end as it should.
    """
    serving = Serving(main, folder / "log")
    answers = serving.load()
    serving.process.send(signal.SIGTERM)
    ended = serving.process.end()
    if ended.code or any(answer.status != 200 for answer in answers):
        raise InputError(f"serve: fails undisturbed; {ended.last_words()}")
    tokens = [tuple(row.x) for row in read_rounds(folder / "log")]
    seconds = max(answer.seconds for answer in answers)
    return Served([answer.text for answer in answers], set(tokens), len(tokens), seconds)


def finish(main: Main, whole: Served, log: Path, outcome: Outcome) -> None:
    """A server that nothing happens to continues the log, which then has the right texts only."""
    serving = Serving(main, log)
    if serving.port is None:
        outcome.note(f"does not start again; {serving.process.end().last_words()}")
        return
    check(serving.load(), whole, outcome)
    serving.process.send(signal.SIGTERM)
    ended = serving.process.end()
    outcome.finished += ended.code == 0
    outcome.note(None if ended.code == 0 else ended.last_words())
    outcome.note(damage(log))
    if wrong := [row.prompt_id for row in read_rounds(log) if tuple(row.x) not in whole.tokens]:
        outcome.note(f"{len(wrong)} logged texts are not those of an undisturbed server, the first is {wrong[0]}")


def check(answers: list[Answer], whole: Served, outcome: Outcome) -> None:
    for i, answer in enumerate(answers):
        if answer.status != 200 or answer.text != whole.texts[i]:
            outcome.note(f"request {i}: status {answer.status}, text {answer.text!r}")
