"""``specpilot bench serve``: servers of three configurations under 1 to 64 concurrent requests, and what they answer.

The servers run at the same time and are asked in turn, so that all see the same machine. Reported are the time to the
first token, the time between pieces of text, and tokens per second over all requests, of the wall time and of the
server's processor time, which other work on the machine changes less; medians over the repeats. Texts of the most
requests at once are compared with those of ``SpeculativeDecoder.generate``.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from ...common.errors import InputError
from ...controllers.length.cost_model import CostModel
from ...infer.decoder import SpeculativeDecoder
from ..decoders import load
from ..options import ServeBenchOptions, ServedOptions
from ..runner import interleave
from ..table import Table
from .http_client import Answer, complete

OURS, FIXED, NONE = "ours", "fixed", "none"
COST = 0.2  # of a draft token in verifications, for drafts that depend on the seed alone and not on the load


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


def pair_words(options: ServedOptions) -> list[str]:
    """What all servers have in common."""
    words = ["--target", options.target, "--draft", options.draft, "--dtype", options.dtype, "--device", options.device]
    return words if options.draft_dtype is None else [*words, "--draft-dtype", options.draft_dtype]


def bench_serve(options: ServeBenchOptions, console: Console) -> dict[str, Any]:
    """Measure, and compare texts with those of ``SpeculativeDecoder.generate``."""
    decoder, prompts = load(options)
    lengths = {
        OURS: ["--length", options.length, "--cost", "auto" if options.cost is None else str(options.cost)],
        FIXED: ["--length", str(options.fixed)],
        NONE: ["--length", "none"],
    }
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(running([*pair_words(options), *words])) for name, words in lengths.items()
        }
        runs = {
            f"{name} {load}": _run(servers[name], prompts, load, options) for load in options.loads for name in servers
        }
        found = interleave(runs, 1, console, repeats=options.repeats, label="batches of requests")
        greedy = _texts(servers, decoder, prompts, options, 0.0)
        steady, others = ["--length", options.length, "--cost", str(COST)], dict(servers)
        if steady != lengths[OURS]:
            others[OURS] = stack.enter_context(running([*pair_words(options), *steady]))
        sampled = _texts(others, decoder, prompts, options, options.temperature)
        exits = {name: server.stop() for name, server in servers.items()}
    table: dict[str, dict[str, Any]] = {}
    for load_ in options.loads:
        table[str(load_)] = {name: _summary([one.value for one in found[f"{name} {load_}"][0]]) for name in servers}
    return {
        "load": table,
        "greedy_texts_equal": greedy,
        "sampled_texts_equal": sampled,
        "exit_codes": exits,
    }


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
        answers = asyncio.run(_ask(server.port, prompts, count, load, {**body_of(options), "seed": 1000 * repeat}))
        return Run(answers, time.perf_counter() - started, processor_seconds(server.process.pid) - before)

    return run


def body_of(options: ServeBenchOptions) -> dict[str, Any]:
    """The sampling of a request."""
    top_k = 0 if options.top_k is None else options.top_k
    return {
        "max_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_k": top_k,
        "top_p": options.top_p,
    }


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


def _texts(
    servers: Mapping[str, ServerProcess],
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    options: ServeBenchOptions,
    temperature: float,
) -> dict[str, list[int]]:
    """For each configuration how many texts of requests at once are those of ``generate``, and of how many.

    The requests have seeds from 0 on. With a temperature the servers' drafts must not depend on the load.
    """
    controllers = {
        OURS: decoder.load_length(options.length, cost=CostModel.load(COST)),
        FIXED: decoder.load_length(str(options.fixed)),
        NONE: decoder.load_length("none"),
    }
    count, found = max(options.loads), {}
    sampling: dict[str, Any] = options.sampling | {"temperature": temperature}
    body = body_of(options) | {"temperature": temperature, "seed": 0}
    for name, server in servers.items():
        served = [answer.text for answer in asyncio.run(_ask(server.port, prompts, count, count, body))]
        own = [
            decoder.generate(prompts[i % len(prompts)], seed=i, length=controllers[name], **sampling).text
            for i in range(count)
        ]
        found[name] = [sum(one == other for one, other in zip(served, own, strict=True)), count]
    return found


def _by_processor_time(row: dict[str, dict[str, float]]) -> dict[str, str]:
    """Ratios of tokens per second of the server's processor time; empty for results that do not have it."""
    name = "tokens_per_processor_second"
    if name not in row[NONE]:
        return {}
    return {f"{one} over none, processor time": f"{row[one][name] / row[NONE][name]:.3f}" for one in (OURS, FIXED)}


def as_table(result: dict[str, Any]) -> Table:
    """Tokens per second by load, and the time to the first token of ours."""
    rows = []
    for load_, row in result["load"].items():
        rates = {name: row[name]["tokens_per_second"] for name in (OURS, FIXED, NONE)}
        rows.append(
            {"requests at once": load_}
            | {name: f"{rate:.0f}" for name, rate in rates.items()}
            | {
                "ours over none": f"{rates[OURS] / rates[NONE]:.3f}",
                "fixed over none": f"{rates[FIXED] / rates[NONE]:.3f}",
                **_by_processor_time(row),
                "first token, ours": f"{1000 * row[OURS]['time_to_first_token']:.0f} ms",
                "between tokens, ours": f"{1000 * row[OURS]['inter_token_latency']:.1f} ms",
            }
        )
    return Table("tokens per second", rows)
