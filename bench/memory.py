"""``specpilot bench memory``: what the process holds over many requests of random lengths. It must not grow."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from ..infer.decoder import SpeculativeDecoder

EVERY = 100  # requests between two readings


def bench_memory(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    sampling: dict[str, Any],
    requests: int,
    on_progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """MiB resident and live tensors after every 100th of ``requests``: prompts cut, and budgets set, at random."""
    random = Random(0)
    readings: list[dict[str, float]] = []
    for request in range(1, requests + 1):
        prompt = random.choice(prompts)
        settings = sampling | {"max_new_tokens": random.randint(1, sampling["max_new_tokens"])}
        decoder.generate(prompt[: random.randint(1, len(prompt))], seed=request, **settings)
        on_progress()
        if request % EVERY == 0:
            readings.append({"requests": request, "resident_mib": resident(), "tensors": live_tensors()})
    return {"readings": readings}


def live_tensors() -> int:
    """Tensors that something still refers to."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def resident() -> float:
    """MiB of this process in memory; not a number where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return pages * 4096 / 2**20
