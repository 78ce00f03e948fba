"""Servers of three configurations under 1 to 64 concurrent requests, and what they answer.

The servers run at the same time and are asked in turn, so that all see the same machine. Reported are the time to the
first token, the time between tokens, and tokens per second over all requests, of the wall time and of the server's
processor time, which other work on the machine changes less; medians. Requests are streamed, with the time of every
event.
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
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import httpx
from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.errors import InputError
from specpilot.common.options import Count, OutputFileOptions, Range, Several
from specpilot.compare.decoders import ComparedDecoder, encoded_prompts
from specpilot.compare.options import RepeatOptions, WorkloadOptions
from specpilot.compare.runner import interleave
from specpilot.compare.table import Table

PATH = "/v1/completions"


@dataclass(frozen=True, kw_only=True)
class ServeLoadOptions(WorkloadOptions, RepeatOptions, OutputFileOptions):
    """Study.

    Attributes:
        length: Trained controller that drafts.
        cost: Its cost model: a file of `specpilot bench cost`; by default the server measures it.
        fixed: Tokens a draft of the server that drafts a fixed length.
        loads: Numbers of requests at once.
        requests: Requests of each measurement; at least the number at once.
    """

    length: str = "tiny-lag-free"
    cost: str | float | None = None
    fixed: Count = 2
    loads: Annotated[tuple[Annotated[int, Range(1, 4096)], ...], Several()] = (1, 4, 16, 64)
    requests: Count = 32


@dataclass
class Answer:
    """The outcome of a request.

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
        async with client(port) as connection, connection.stream("POST", PATH, json=content) as response:
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


class Server(NamedTuple):
    """A server of its own process."""

    process: subprocess.Popen[str]
    port: int


@contextmanager
def running(words: Sequence[str]) -> Iterator[Server]:
    """A server for the length of a block.

    Raises:
        InputError: it did not start.
    """
    command = [sys.executable, "-m", "specpilot", "serve", "--port", "0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = ""
        for line in process.stderr:
            if match := re.search(r"on http://127\.0\.0\.1:(\d+)", line):
                # Read on: a server whose standard error is full would stop.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield Server(process, int(match[1]))
                return
        raise InputError(f"serve {' '.join(words)}: {line.strip() or 'it ended without a word'}")
    finally:
        process.kill()
        process.wait()


def measure(options: ServeLoadOptions, console: Console) -> dict[str, Any]:
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
            f"{name} {load}": partial(_run, servers[name], prompts, load, options)
            for load in options.loads
            for name in servers
        }
        results: dict[str, list[Run]] = {name: [] for name in runs}
        for name, _, timed in interleave(runs, 1, console, repeats=options.repeats, label="batches of requests"):
            results[name].append(timed.value)
        for server in servers.values():
            server.process.send_signal(signal.SIGTERM)
        exits = {name: server.process.wait(120) for name, server in servers.items()}
    table = {str(load): {name: _summary(results[f"{name} {load}"]) for name in servers} for load in options.loads}
    return {"load": table, "exit_codes": exits}


class Run(NamedTuple):
    """A server's answers, with the seconds of wall time and of its processor time."""

    answers: list[Answer]
    seconds: float
    processor_seconds: float


def _run(server: Server, prompts: list[list[int]], load: int, options: ServeLoadOptions, item: int, repeat: int) -> Run:
    """Ask for ``options.requests`` texts, ``load`` at a time."""
    started, before = time.perf_counter(), processor_seconds(server.process.pid)
    body = {
        "max_tokens": options.max_new_tokens, "temperature": options.temperature, "top_k": options.top_k or 0,
        "top_p": options.top_p,
    }  # fmt: skip
    bodies = [
        body | {"prompt": prompts[i % len(prompts)], "seed": 1000 * repeat + i}
        for i in range(max(options.requests, load))
    ]
    answers = asyncio.run(_ask(server.port, bodies, load))
    return Run(answers, time.perf_counter() - started, processor_seconds(server.process.pid) - before)


async def _ask(port: int, bodies: Sequence[dict[str, Any]], load: int) -> list[Answer]:
    """The answers to all requests, ``load`` at a time."""
    gate = asyncio.Semaphore(load)

    async def one(body: dict[str, Any]) -> Answer:
        async with gate:
            return await complete(port, body)

    answers = await asyncio.gather(*map(one, bodies))
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
    """Medians over repeats, and over requests."""
    tokens = [sum(answer.tokens for answer in run.answers) for run in runs]
    answers = [answer for run in runs for answer in run.answers if answer.times]
    return {
        "tokens_per_second": median(n / run.seconds for n, run in zip(tokens, runs, strict=True)),
        "tokens_per_processor_second": median(n / run.processor_seconds for n, run in zip(tokens, runs, strict=True)),
        "time_to_first_token": median(answer.times[0] for answer in answers),
        "inter_token_latency": median(
            (answer.times[-1] - answer.times[0]) / max(1, answer.tokens - 1) for answer in answers
        ),
    }


def as_table(result: dict[str, Any]) -> Table:
    """Tokens per second by load, and the times of ours."""
    rows = []
    for load, row in result["load"].items():
        cells = {"requests at once": load} | {name: f"{row[name]['tokens_per_second']:.0f}" for name in row}
        for words, key in (("", "tokens_per_second"), (", processor time", "tokens_per_processor_second")):
            for name in (OURS, FIXED):
                cells[f"{name} over none{words}"] = f"{row[name][key] / row[NONE][key]:.3f}"
        cells["first token, ours"] = f"{1000 * row[OURS]['time_to_first_token']:.0f} ms"
        cells["between tokens, ours"] = f"{1000 * row[OURS]['inter_token_latency']:.1f} ms"
        rows.append(cells)
    return Table("tokens per second", rows)


def main(options: ServeLoadOptions) -> None:
    """Time servers under concurrent requests.

    One has a trained controller, one drafts a fixed length, and one decodes without drafts.
    """
    console = begin()
    result = measure(options, console)
    console.print(as_table(result))
    finish(result, options, options.output)
