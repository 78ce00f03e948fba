"""``specpilot bench batch``: tokens per second by how many prompts are decoded together."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from ..controllers.length import Fixed
from ..infer.decoder import SpeculativeDecoder

SIZES = (1, 2, 4, 8, 16)
LENGTHS = (0, 2, 4)  # tokens a draft; 0 is autoregressive


def bench_batch(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    sampling: dict[str, Any],
    repeats: int,
    on_progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """``tokens_per_second[draft length][batch size]``: medians over ``repeats`` passes, all settings in turn.

    Every pass decodes all prompts, in batches of the size in question, the last perhaps a smaller one.
    """
    rates: dict[tuple[int, int], list[float]] = {(length, size): [] for length in LENGTHS for size in SIZES}
    for repeat in range(repeats + 1):  # the first is warm-up
        for (length, size), passes in rates.items():
            decoder.length = Fixed(length)
            tokens = 0
            started = time.perf_counter()
            for start in range(0, len(prompts), size):
                rows = decoder.generate(prompts[start : start + size], seed=start, **sampling)
                tokens += sum(len(row.tokens) for row in rows)
            if repeat > 0:
                passes.append(tokens / (time.perf_counter() - started))
            on_progress()
    return {
        "tokens_per_second": {
            f"fixed-{length}": {str(size): median(rates[length, size]) for size in SIZES} for length in LENGTHS
        }
    }
