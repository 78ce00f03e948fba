"""``python -m experiments profile``: share of the wall time of decoding that each part takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from specpilot.commands.measuring import begin, finish
from specpilot.common.options import Natural
from specpilot.compare.decoders import load
from specpilot.compare.options import WorkloadOptions
from specpilot.compare.table import Table
from specpilot.controllers.length import Fixed
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.distribution import TokenDistribution
from specpilot.infer.models import CausalLM, LanguageModel, RaggedKVCache, Read
from specpilot.infer.options import DraftPrecisionOptions
from specpilot.infer.request import Request
from specpilot.infer.verify import VERIFIERS

Label = Callable[..., str]  # (arguments of a call) → its label
Watched = tuple[Any, str, Label]  # an object, class or dictionary; the name of its function; the label of a call
Calls = dict[str, list[float]]  # label → seconds of each call


@dataclass(frozen=True, kw_only=True)
class ProfileBenchOptions(WorkloadOptions, DraftPrecisionOptions):
    """Benchmark.

    Attributes:
        length: Draft length; 0 is autoregressive.
    """

    length: Natural = 5


@contextmanager
def watching(*watched: Watched) -> Iterator[Calls]:
    """Time the calls of functions while the block runs.

    A call within another watched call counts as part of the outer one. GPU work is synchronized.
    """
    calls: Calls = {}
    running: list[str] = []
    with ExitStack() as stack:
        for owner, name, label in watched:
            if isinstance(owner, dict):
                stack.enter_context(patch.dict(owner, {name: _timed(owner[name], label, calls, running)}))
            else:
                stack.enter_context(patch.object(owner, name, _timed(getattr(owner, name), label, calls, running)))
        yield calls


def _timed(plain: Callable[..., Any], label: Label, calls: Calls, running: list[str]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        if running:
            return plain(*arguments, **options)
        name = label(*arguments)
        running.append(name)
        started = time.perf_counter()
        try:
            result = plain(*arguments, **options)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
            return result
        finally:
            calls.setdefault(name, []).append(time.perf_counter() - started)
            running.pop()

    return timed


def tokens_of(reads: Sequence[Read]) -> int:
    return sum(len(read.tokens) for read in reads)


def timed_decoding(decoder: SpeculativeDecoder, prompts: Sequence[list[int]], settings: dict[str, Any]) -> float:
    """Wall seconds of decoding the prompts one after the other; ``settings`` are keywords of ``generate``."""
    started = time.perf_counter()
    for index, prompt in enumerate(prompts):
        decoder.generate(prompt, seed=index, **settings)
    return time.perf_counter() - started


def profile(decoder: SpeculativeDecoder, prompts: list[list[int]], settings: dict[str, Any]) -> dict[str, Any]:
    """Share of the wall time, number of calls and microseconds per call of each part; ``rest_share`` is the remainder.

    The figures include two clock readings per call, a fraction of a microsecond.
    """
    names = {id(model): name for model, name in _names(decoder)}

    def forward(model: LanguageModel, cache: RaggedKVCache, reads: Sequence[Read]) -> str:
        prompts = all(cache.length(read.text) == 0 for read in reads)
        return f"{names[id(model)]}: {'prompts' if prompts else f'forwards of {tokens_of(reads)}'}"

    timed_decoding(decoder, prompts, settings)  # warm-up
    with watching(
        (CausalLM, "forward", forward),
        (RaggedKVCache, "keep", lambda *_: "caches rolled back"),
        (RaggedKVCache, "add", lambda *_: "caches started"),
        (TokenDistribution, "from_logits", lambda *_: "logits to distributions (top-k, softmax)"),
        (TokenDistribution, "sample", lambda *_: "drawing tokens"),
        (Request, "append", lambda *_: "trace and counters"),
        (VERIFIERS, decoder.config.rule, lambda *_: "verification"),
    ) as calls:
        wall = timed_decoding(decoder, prompts, settings)
    parts = {
        label: {"share": sum(seconds) / wall, "calls": len(seconds), "microseconds": sum(seconds) / len(seconds) * 1e6}
        for label, seconds in sorted(calls.items(), key=lambda part: -sum(part[1]))
    }
    return {"parts": parts, "rest_share": 1 - sum(part["share"] for part in parts.values()), "seconds": wall}


def _names(decoder: SpeculativeDecoder) -> list[tuple[LanguageModel, str]]:
    return [(decoder.target, "target"), *((model, f"draft {i + 1}") for i, model in enumerate(decoder.drafts))]


def as_table(result: Mapping[str, Any]) -> Table:
    """What the decoder's parts take, the longest first."""
    rows = [
        {
            "part": label,
            "share of wall time": f"{part['share']:.1%}",
            "calls": f"{part['calls']:,}",
            "µs per call": f"{part['microseconds']:.0f}",
        }
        for label, part in result["parts"].items()
        if part["share"] >= 0.001
    ]
    return Table("", [*rows, {"part": "everything else", "share of wall time": f"{result['rest_share']:.1%}"}])


def main(options: ProfileBenchOptions) -> None:
    """Measure the share of the decoder's wall time that each part takes."""
    console = begin()
    decoder, prompts = load(options)
    result = profile(decoder, prompts, options.sampling | {"length": Fixed(options.length)})
    console.print(as_table(result))
    finish(result, options)
