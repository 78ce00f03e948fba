"""Servers that log their rounds, the load that clients put on them, and whether texts and log are right."""

import asyncio
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specpilot.compare.engines.serve import Answer, complete
from specpilot.data_gen.kinds import RoundsRow, read_dataset

from ..folders import assert_whole
from ..processes import Ended, Fault, Process, command

WORDS = ("serve", "--length", "tiny-lag-free", "--cost", "0.2", "--port", "0", "--device", "cpu")
REQUESTS = 80  # of one load; 64 texts are a shard
AT_ONCE = 16
PROMPTS = ("What is 12 plus 30?", "Write a line about rain.", "List the files of a folder.")


class Serving:
    """A server, with a log of its rounds in ``log`` if that is given.

    Attributes:
        port: None if it ended before it listened.
    """

    def __init__(self, log: Path | None, fault: Fault | None = None) -> None:
        words = WORDS if log is None else (*WORDS, "--log-rounds", str(log))
        self.process = Process(command(*words), log or Path("/none"), fault)
        self.port: int | None = None
        while self.port is None and self.process.running():
            found = re.search(r"on http://127\.0\.0\.1:(\d+)", self.process.text)
            self.port = int(found[1]) if found else None
            self.process.wait(0.02)

    def load(self, after: float | None = None, number: int = signal.SIGTERM) -> list[Answer]:
        """Send all requests; send the server a signal so many seconds later."""
        assert self.port is not None, self.process.end()
        return asyncio.run(_load(self.port, after, partial(self.process.send, number)))

    def stop(self) -> Ended:
        """End it as its operator does, if it does not end already."""
        self.process.send(signal.SIGTERM)
        ended = self.process.end()
        assert ended.code == 0, ended
        assert "Traceback" not in ended.text
        return ended


async def _load(port: int, after: float | None, do: Callable[[], None]) -> list[Answer]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(i: int) -> Answer:
        body = {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 12, "temperature": 1.0, "seed": i}
        async with gate:
            return await complete(port, body)

    tasks = [asyncio.ensure_future(one(i)) for i in range(REQUESTS)]
    if after is not None:
        await asyncio.sleep(after)
        do()
    return list(await asyncio.gather(*tasks))


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

    def check(self, answers: list[Answer]) -> None:
        """All requests were answered, with the right texts."""
        assert [(answer.status, answer.text) for answer in answers] == [(200, text) for text in self.texts]

    def finish(self, log: Path) -> None:
        """A server that nothing happens to continues the log, which then has the right texts only."""
        serving = Serving(log)
        self.check(serving.load())
        serving.stop()
        assert_whole(log)
        assert {tuple(row.x) for row in read_dataset(log, RoundsRow)} <= self.tokens


def undisturbed_server(log: Path) -> Served:
    serving = Serving(log)
    answers = serving.load()
    serving.stop()
    tokens = [tuple(row.x) for row in read_dataset(log, RoundsRow)]
    served = Served(
        [answer.text for answer in answers], set(tokens), len(tokens), max(answer.seconds for answer in answers)
    )
    served.check(answers)
    return served
