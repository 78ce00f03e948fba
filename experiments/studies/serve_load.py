"""Speed of servers with three configurations under 1 to 64 concurrent requests.

The servers run at the same time. The requests go to the servers in turn, so that other work on the machine slows all
servers equally. The study reports medians of the time to the first token, of the time between tokens, and of the tokens
per second over all requests. Tokens per second are computed from the wall time and from the processor time of the
server, which depends less on other work. Requests are streamed, and the time of each event is recorded.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
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

from ..processes import started

PATH = "/v1/completions"


@dataclass(frozen=True, kw_only=True)
class ServeLoadOptions(WorkloadOptions, RepeatOptions, OutputFileOptions):
    """Study.

    Options of ``python -m experiments serve``.

    Attributes:
        length: Trained controller that drafts.
        cost: Costs for the trained controller: a file of `specpilot bench cost`. By default, the server measures them.
        fixed: Number of tokens of a draft on the server with a fixed draft length.
        loads: Numbers of concurrent requests.
        requests: Number of requests in each measurement, at least the number of concurrent requests.
    """

    length: str = "tiny-lag-free"
    cost: str | float | None = None
    fixed: Count = 2
    loads: Annotated[tuple[Annotated[int, Range(1, 4096)], ...], Several()] = (1, 4, 16, 64)
    requests: Count = 32


@dataclass
class Answer:
    """The response to a streamed request.

    Attributes:
        status: the HTTP status; 0 if the connection ended before the end of the response.
        text: the generated text, over all choices.
        times: seconds from the start of the request to each piece of text.
        tokens: number of generated tokens over all choices; 0 if the server did not report it.
        seconds: duration of the request.
        error: the error message of the server; None without an error.
    """

    status: int = 0
    text: str = ""
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    error: str | None = None


def client(port: int) -> httpx.AsyncClient:
    """Return a client of a server on this machine, with a connection for each request and no time limit."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=None, verify=False)


async def complete(port: int, body: dict[str, Any], *, slow: float = 0.0) -> Answer:
    """Send a request for a streamed completion, and return the response. Broken connections raise no error.

    Args:
        port: port of the server on this machine.
        body: the fields of the request, without those of streaming.
        slow: seconds to wait before reading each event, to imitate a slow client.
    """
    start_time = time.perf_counter()
    answer = Answer()
    is_complete = False
    request = body | {"stream": True, "stream_options": {"include_usage": True}}
    try:
        async with client(port) as connection, connection.stream("POST", PATH, json=request) as response:
            answer.status = response.status_code
            async for line in response.aiter_lines():
                is_complete = is_complete or line == "data: [DONE]"
                is_error_body = line.startswith("{")  # a response with an error status is JSON, not a stream of events
                if is_error_body or (line.startswith("data: ") and not is_complete):
                    _add_chunk(answer, json.loads(line.removeprefix("data: ")), time.perf_counter() - start_time)
                if slow:
                    await asyncio.sleep(slow)
    except (httpx.HTTPError, ValueError):
        is_complete = False
    if answer.status == 200 and not is_complete:
        answer.status = 0
    answer.seconds = time.perf_counter() - start_time
    return answer


def _add_chunk(answer: Answer, chunk: dict[str, Any], seconds: float) -> None:
    """Add a chunk of the stream, or an error, to ``answer``; ``seconds`` is its time since the start of the request."""
    if "error" in chunk:
        answer.error = chunk["error"]["message"]
        return
    for choice in chunk["choices"]:
        answer.text += choice["text"]
        answer.times.append(seconds)
    if "usage" in chunk:
        answer.tokens = chunk["usage"]["completion_tokens"]


TRAINED, FIXED, NONE = "ours", "fixed", "none"


class Server(NamedTuple):
    """A server and its process."""

    process: Popen[str]
    port: int


@contextmanager
def running(words: Sequence[str]) -> Iterator[Server]:
    """Start a server, and stop it at the end of the ``with`` block.

    Args:
        words: options of ``specpilot serve``.

    Raises:
        InputError: the server did not start.
    """
    command = [sys.executable, "-m", "specpilot", "serve", "--port", "0", *words]
    with started(command, stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        line = ""
        for line in process.stderr:
            if match := re.search(r"on http://127\.0\.0\.1:(\d+)", line):
                # Read on: a server whose standard error is full would stop.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield Server(process, int(match[1]))
                return
        raise InputError(f"serve {' '.join(words)}: {line.strip() or 'the server ended without a message'}")


def measure(options: ServeLoadOptions, console: Console) -> dict[str, Any]:
    """Measure three servers: with drafts of a trained controller, with drafts of a fixed length, and without drafts."""
    prompts, base = encoded_prompts(options), options.base
    cost = "auto" if options.cost is None else options.cost
    decoders = [
        ComparedDecoder.of(base, TRAINED, length=options.length, cost=cost),
        ComparedDecoder.of(base, FIXED, length=options.fixed),
        ComparedDecoder.of(base, NONE, length="none"),
    ]
    with ExitStack() as stack:
        servers = {decoder.name: stack.enter_context(running(decoder.arguments())) for decoder in decoders}
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
    """Return the answers to all requests, ``load`` at a time."""
    gate = asyncio.Semaphore(load)

    async def answer_to(body: dict[str, Any]) -> Answer:
        async with gate:
            return await complete(port, body)

    answers = await asyncio.gather(*map(answer_to, bodies))
    for answer in answers:
        if answer.status != 200 or answer.error:
            raise InputError(f"serve: a request failed with status {answer.status} ({answer.error})")
    return answers


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its threads so far; NaN if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _summary(runs: list[Run]) -> dict[str, float]:
    """Return medians over repeats, and over requests."""
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
    """Return the table of tokens per second by load, with the times of specpilot's server."""
    rows = []
    for load, row in result["load"].items():
        cells = {"requests at once": load} | {name: f"{row[name]['tokens_per_second']:.0f}" for name in row}
        for words, key in (("", "tokens_per_second"), (", processor time", "tokens_per_processor_second")):
            for name in (TRAINED, FIXED):
                cells[f"{name} over none{words}"] = f"{row[name][key] / row[NONE][key]:.3f}"
        cells["first token, ours"] = f"{1000 * row[TRAINED]['time_to_first_token']:.0f} ms"
        cells["between tokens, ours"] = f"{1000 * row[TRAINED]['inter_token_latency']:.1f} ms"
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
