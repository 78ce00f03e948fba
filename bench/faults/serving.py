"""Servers that are killed, ended, run out of disk or share a folder, while clients wait for their texts."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ...controllers.errors import InputError
from ...data_gen.on_policy import read_rounds
from ..workloads.http_client import Answer, complete
from .cases import Outcome, in_one_line
from .contents import damage
from .disks import disk
from .processes import Main, Process, fill

WORDS = ("serve", "--length", "tiny-lag-free", "--cost", "0.2", "--port", "0", "--device", "cpu", "--log-rounds")
REQUESTS = 80  # of one load; 64 texts are a shard
AT_ONCE = 16
PROMPTS = ("What is 12 plus 30?", "Write a line about rain.", "List the files of a folder.")


@dataclass(frozen=True)
class Served:
    """What an undisturbed server answers: the texts, the tokens that it logs, and the seconds of a load."""

    texts: list[str]
    tokens: set[tuple[int, ...]]
    seconds: float


class Serving:
    """A server with a log of its rounds."""

    def __init__(self, main: Main, log: Path) -> None:
        self.process = Process(main, [*WORDS, str(log)], log)
        self.port: int | None = None
        while self.port is None and self.process.running():
            found = re.search(r"on http://127\.0\.0\.1:(\d+)", self.process.text)
            self.port = int(found[1]) if found else None
            self.process.wait(0.02)

    def load(self, after: float | None = None, do: Callable[[], None] = lambda: None) -> list[Answer]:
        """Send all requests; ``do`` something so many seconds later."""
        assert self.port is not None, "the server has started"
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
    tokens = {tuple(row.x) for row in read_rounds(folder / "log")}
    return Served([answer.text for answer in answers], tokens, max(answer.seconds for answer in answers))


def killed(main: Main, whole: Served, root: Path, random: Random, times: int) -> Outcome:
    """SIGKILL while requests are answered; the next server continues the log."""
    outcome, log = Outcome(), root / "log"
    for _ in range(times):
        serving = Serving(main, log)
        if serving.port is None:
            outcome.note(f"does not start again; {serving.process.end().last_words()}")
            break
        moment = random.uniform(0, 4 * whole.seconds)
        answers = serving.load(moment, lambda serving=serving: serving.process.send(signal.SIGKILL))  # type: ignore[misc]
        serving.process.end()
        outcome.attempts += 1
        for i, answer in enumerate(answers):
            right = answer.text == whole.texts[i] if answer.status == 200 else whole.texts[i].startswith(answer.text)
            if not right:
                outcome.note(f"request {i}: status {answer.status}, text {answer.text!r}")
        outcome.note(damage(log))
    _finish(main, whole, log, outcome)
    return outcome


def ended_by(number: int, main: Main, whole: Served, root: Path, random: Random, times: int) -> Outcome:
    """SIGTERM or SIGINT: what was accepted is answered, then the server ends with exit code 0."""
    outcome, log = Outcome(), root / "log"
    for _ in range(times):
        serving = Serving(main, log)
        moment = random.uniform(0, whole.seconds)
        answers = serving.load(moment, lambda serving=serving: serving.process.send(number))  # type: ignore[misc]
        ended = serving.process.end()
        outcome.attempts += 1
        if ended.code or "Traceback" in ended.text:
            outcome.note(ended.last_words())
        for i, answer in enumerate(answers):
            refused = answer.status in (0, 503) and not answer.text
            if not refused and (answer.status != 200 or answer.text != whole.texts[i]):
                outcome.note(f"request {i}: status {answer.status}, text {answer.text!r}")
        outcome.note(damage(log))
    _finish(main, whole, log, outcome)
    return outcome


def full_disk(main: Main, whole: Served, root: Path) -> Outcome:
    """The log's disk is full for one load: texts go on, the log says so in one line and goes on when there is space."""
    outcome = Outcome()
    with disk(root / "disk") as mounted:
        if not mounted:
            outcome.means = "not tried: no disk can be mounted here"
            return outcome
        outcome.means = "a tmpfs"
        log, filler = root / "disk" / "log", root / "disk" / "filler"
        serving = Serving(main, log)
        fill(filler)
        for _ in range(2):
            _check(serving.load(), whole, outcome)
            outcome.attempts += 1
        outcome.note(damage(log))
        errors = serving.process.text.count("specpilot: error: ")
        if errors != 1 or "Traceback" in serving.process.text:
            outcome.note(f"{errors} errors in the log: {serving.process.text[-300:]!r}")
        filler.unlink()
        _check(serving.load(), whole, outcome)
        serving.process.send(signal.SIGTERM)
        ended = serving.process.end()
        if ended.code:
            outcome.note(ended.last_words())
        outcome.note_line(" ".join(ended.text.splitlines()[1:2]), root)
        _finish(main, whole, log, outcome)
        if len(read_rounds(log)) < 2 * REQUESTS:
            outcome.note("requests that were served while there was space are not logged")
    return outcome


def two_servers(main: Main, root: Path) -> Outcome:
    """The second server that would log to a folder is refused."""
    outcome, log = Outcome(attempts=1), root / "log"
    serving = Serving(main, log)
    second = Serving(main, log).process.end()
    outcome.note_line(second.complaint() or "", root)
    if not (in_one_line(second) and "another process" in str(second.complaint())):
        outcome.note(second.last_words())
    serving.process.send(signal.SIGTERM)
    outcome.finished += serving.process.end().code == 0
    return outcome


def _finish(main: Main, whole: Served, log: Path, outcome: Outcome) -> None:
    """A server that nothing happens to continues the log, which then holds the right texts only."""
    serving = Serving(main, log)
    if serving.port is None:
        outcome.note(f"does not start again; {serving.process.end().last_words()}")
        return
    _check(serving.load(), whole, outcome)
    serving.process.send(signal.SIGTERM)
    ended = serving.process.end()
    outcome.finished += ended.code == 0
    outcome.note(None if ended.code == 0 else ended.last_words())
    outcome.note(damage(log))
    if wrong := [row.prompt_id for row in read_rounds(log) if tuple(row.x) not in whole.tokens]:
        outcome.note(f"{len(wrong)} logged texts are not those of an undisturbed server, the first is {wrong[0]}")


def _check(answers: list[Answer], whole: Served, outcome: Outcome) -> None:
    for i, answer in enumerate(answers):
        if answer.status != 200 or answer.text != whole.texts[i]:
            outcome.note(f"request {i}: status {answer.status}, text {answer.text!r}")
