"""``specpilot bench serve``: servers of three configurations under 1 to 64 concurrent requests, and what they answer.

The servers run at the same time and are asked in turn, so that all see the same machine. Reported are the time to the
first token, the time between pieces of text, and tokens per second over all requests, of the wall time and of the
server's processor time, which other work on the machine changes less; medians over the repeats. Requests are streamed,
with the time of every event.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
from rich.console import Console

from ...common.errors import InputError
from ..decoders import ComparedDecoder, encoded_prompts
from ..options import ServeBenchOptions
from ..runner import interleave
from ..table import Table

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


OURS, FIXED, NONE = "ours", "fixed", "none"


class ServerProcess:
    """A server of its own process.

    Raises:
        InputError: it did not start.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "specpilot", "serve", "--port", "0", *words], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            found = re.search(r"on http://127\.0\.0\.1:(\d+)", line)
            if found is not None:
                self.port = int(found[1])
                # Read on: a server whose standard error is full would stop.
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return
            lines.append(line.strip())
        raise InputError(f"serve {' '.join(words)}: {lines[-1] if lines else 'it ended without a word'}")

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextmanager
def running(words: Sequence[str]) -> Iterator[ServerProcess]:
    """A server for the length of a block."""
    server = ServerProcess(words)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def bench_serve(options: ServeBenchOptions, console: Console) -> dict[str, Any]:
    """Measure servers that draft by the trained controller, of a fixed length, and nothing."""
    prompts, base = encoded_prompts(options), options.base
    cost = "auto" if options.cost is None else options.cost
    decoders = [
        ComparedDecoder.of(base, OURS, length=options.length, cost=cost),
        ComparedDecoder.of(base, FIXED, length=options.fixed),
        ComparedDecoder.of(base, NONE, length="none"),
    ]
    with ExitStack() as stack:
        servers = {one.name: stack.enter_context(running(one.arguments())) for one in decoders}
        runs = {
            f"{name} {load}": _run(servers[name], prompts, load, options) for load in options.loads for name in servers
        }
        found = interleave(runs, 1, console, repeats=options.repeats, label="batches of requests")
        exits = {name: server.stop() for name, server in servers.items()}
    table = {
        str(load): {name: _summary([one.value for one in found[f"{name} {load}"][0]]) for name in servers}
        for load in options.loads
    }
    return {"load": table, "exit_codes": exits}


class Run(NamedTuple):
    """What a server answered, in how many seconds of wall time and of its processor time."""

    answers: list[Answer]
    seconds: float
    processor_seconds: float


def _run(server: ServerProcess, prompts: list[list[int]], load: int, options: ServeBenchOptions) -> Any:
    """A call that asks for ``options.requests`` texts, ``load`` at a time."""

    def run(item: int, repeat: int) -> Run:
        started, before = time.perf_counter(), processor_seconds(server.process.pid)
        count = max(options.requests, load)
        body = {
            "max_tokens": options.max_new_tokens, "temperature": options.temperature, "top_k": options.top_k or 0,
            "top_p": options.top_p, "seed": 1000 * repeat,
        }  # fmt: skip
        answers = asyncio.run(_ask(server.port, prompts, count, load, body))
        return Run(answers, time.perf_counter() - started, processor_seconds(server.process.pid) - before)

    return run


async def _ask(port: int, prompts: list[list[int]], count: int, load: int, body: dict[str, Any]) -> list[Answer]:
    """``count`` requests, ``load`` at a time."""
    gate = asyncio.Semaphore(load)

    async def one(i: int) -> Answer:
        async with gate:
            return await complete(port, body | {"prompt": prompts[i % len(prompts)], "seed": body["seed"] + i})

    answers = await asyncio.gather(*(one(i) for i in range(count)))
    for answer in answers:
        if answer.status != 200 or answer.error:
            raise InputError(f"serve: a request failed with status {answer.status} ({answer.error})")
    return answers


def processor_seconds(pid: int) -> float:
    """Processor time of a process and its threads so far; NaN if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _summary(runs: list[Run]) -> dict[str, float]:
    """Medians over repeats."""
    first = [median(answer.times[0] for answer in run.answers if answer.times) for run in runs]
    between = [median(late - early for answer in run.answers for early, late in pairwise(answer.times)) for run in runs]
    tokens = [sum(answer.tokens for answer in run.answers) for run in runs]
    return {
        "tokens_per_second": median(n / run.seconds for n, run in zip(tokens, runs, strict=True)),
        "tokens_per_processor_second": median(n / run.processor_seconds for n, run in zip(tokens, runs, strict=True)),
        "time_to_first_token": median(first),
        "inter_token_latency": median(
            (answer.times[-1] - answer.times[0]) / max(1, answer.tokens - 1)
            for run in runs
            for answer in run.answers
            if answer.times
        ),
        "time_between_pieces": median(between),
    }


def as_table(result: dict[str, Any]) -> Table:
    """Tokens per second by load, and the time to the first token of ours."""
    rows = []
    for load_, row in result["load"].items():
        rates, by_processor = (
            {name: row[name][key] for name in (OURS, FIXED, NONE)}
            for key in ("tokens_per_second", "tokens_per_processor_second")
        )
        rows.append(
            {"requests at once": load_}
            | {name: f"{rate:.0f}" for name, rate in rates.items()}
            | {
                "ours over none": f"{rates[OURS] / rates[NONE]:.3f}",
                "fixed over none": f"{rates[FIXED] / rates[NONE]:.3f}",
                "ours over none, processor time": f"{by_processor[OURS] / by_processor[NONE]:.3f}",
                "fixed over none, processor time": f"{by_processor[FIXED] / by_processor[NONE]:.3f}",
                "first token, ours": f"{1000 * row[OURS]['time_to_first_token']:.0f} ms",
                "between tokens, ours": f"{1000 * row[OURS]['inter_token_latency']:.1f} ms",
            }
        )
    return Table("tokens per second", rows)
