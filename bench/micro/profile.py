"""``specpilot bench profile``: where the wall time of decoding goes, part by part."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from ...infer.decoder import SpeculativeDecoder
from ...infer.distribution import TokenDistribution
from ...infer.models import CausalLM, RaggedKVCache, Read
from ...infer.request import Request
from ...infer.verify import VERIFIERS


@dataclass
class Part:
    """Calls of one function and their seconds."""

    calls: int = 0
    seconds: float = 0.0


def profile(decoder: SpeculativeDecoder, prompts: list[list[int]], sampling: dict[str, Any]) -> dict[str, Any]:
    """Share of the wall time, calls and microseconds a call of each part; ``rest`` is the loop around them.

    A clock read before and after each call is in the parts' own figures, a fraction of a microsecond.
    """
    names = {id(model): f"draft {i + 1}" for i, model in enumerate(decoder.drafts)} | {id(decoder.target): "target"}
    parts: dict[str, Part] = {}
    running: list[str] = []  # the part that the clock is on, if any

    def run() -> float:
        started = time.perf_counter()
        for index, prompt in enumerate(prompts):
            decoder.generate(prompt, seed=index, **sampling)
        return time.perf_counter() - started

    run()  # warm-up
    with ExitStack() as stack:
        for owner, name, label in (
            (CausalLM, "forward", lambda model, cache, reads: f"{names[id(model)]}: {_what(cache, reads)}"),
            (RaggedKVCache, "keep", lambda *_: "caches rolled back"),
            (RaggedKVCache, "add", lambda *_: "caches begun"),
            (TokenDistribution, "from_logits", lambda *_: "logits to distributions (top-k, softmax)"),
            (TokenDistribution, "sample", lambda *_: "drawing tokens"),
            (Request, "append", lambda *_: "trace and counters"),
        ):
            stack.enter_context(patch.object(owner, name, _timed(getattr(owner, name), label, parts, running)))
        rule = decoder.config.rule
        verify = _timed(VERIFIERS[rule], lambda *_: "verification", parts, running)
        stack.enter_context(patch.dict(VERIFIERS, {rule: verify}))
        wall = run()
    rest = wall - sum(part.seconds for part in parts.values())
    rows = {
        label: {"share": part.seconds / wall, "calls": part.calls, "microseconds": part.seconds / part.calls * 1e6}
        for label, part in sorted(parts.items(), key=lambda row: -row[1].seconds)
    }
    return {"parts": rows, "rest_share": rest / wall, "seconds": wall}


def _what(cache: RaggedKVCache, reads: Sequence[Read]) -> str:
    if all(cache.length(read.text) == 0 for read in reads):
        return "prompts"
    return f"forwards of {sum(len(read.tokens) for read in reads)}"


def _timed(plain: Callable[..., Any], label: Callable[..., str], parts: dict[str, Part], running: list[str]) -> Any:
    """``plain``, whose calls are counted and clocked under the name that ``label`` gives their arguments."""

    def timed(*arguments: Any, **options: Any) -> Any:
        if running:  # inside another part, whose time this is
            return plain(*arguments, **options)
        part = parts.setdefault(label(*arguments), Part())
        running.append(plain.__name__)
        started = time.perf_counter()
        try:
            return plain(*arguments, **options)
        finally:
            part.seconds += time.perf_counter() - started
            part.calls += 1
            running.pop()

    return timed
