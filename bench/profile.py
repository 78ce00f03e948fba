"""``specpilot bench profile``: where the wall time of decoding goes, part by part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch import Tensor

from ..infer import decoder as loop
from ..infer import draft as drafting
from ..infer.cached_model import CachedModel
from ..infer.decoder import SpeculativeDecoder
from ..infer.distribution import TokenDistribution
from ..infer.generation import Generation


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
            (CachedModel, "forward", lambda model, tokens: f"{names[id(model)]}: {_what(model, tokens)}"),
            (CachedModel, "keep", lambda *_: "caches rolled back"),
            (CachedModel, "start", lambda *_: "caches allocated"),
            (TokenDistribution, "under", lambda *_: "logits to distributions (top-k, softmax)"),
            (TokenDistribution, "sample", lambda *_: "drawing tokens"),
            (decoder, "verify", lambda *_: "verification"),
            (drafting, "as_row", lambda *_: "tokens to tensors"),
            (loop, "as_row", lambda *_: "tokens to tensors"),
            (Generation, "record_verdict", lambda *_: "trace and counters"),
        ):
            stack.enter_context(_timed(owner, name, label, parts, running))
        wall = run()
    # What verification draws itself is counted there.
    rest = wall - sum(part.seconds for part in parts.values())
    rows = {
        label: {"share": part.seconds / wall, "calls": part.calls, "microseconds": part.seconds / part.calls * 1e6}
        for label, part in sorted(parts.items(), key=lambda row: -row[1].seconds)
    }
    return {"parts": rows, "rest_share": rest / wall, "seconds": wall}


def _what(model: CachedModel, tokens: Tensor) -> str:
    return "prompts" if model.length == 0 else f"forwards of {tokens.shape[1]}"


@contextmanager
def _timed(owner: Any, name: str, label: Any, parts: dict[str, Part], running: list[str]) -> Iterator[None]:
    plain = getattr(owner, name)

    def timed(*arguments: Any, **options: Any) -> Any:
        if running:  # inside another part, whose time this is
            return plain(*arguments, **options)
        part = parts.setdefault(label(*arguments), Part())
        running.append(name)
        started = time.perf_counter()
        try:
            return plain(*arguments, **options)
        finally:
            part.seconds += time.perf_counter() - started
            part.calls += 1
            running.pop()

    with patch.object(owner, name, timed):
        yield
