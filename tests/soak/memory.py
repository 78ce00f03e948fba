"""``specpilot bench memory``: memory of the process over many requests of mixed kinds. It must not grow."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from rich.console import Console
from specpilot.common.progress import progress_bar
from specpilot.controllers.length import CumulativeConfidence, Fixed
from specpilot.infer.decoder import SpeculativeDecoder

EVERY = 100  # requests between two readings
MOST = 8  # prompts in one list
KINDS = ("plain", "plain", "length", "block", "tree", "stream", "samples")


def bench_memory(
    decoder: SpeculativeDecoder, prompts: list[list[int]], sampling: dict[str, Any], requests: int, console: Console
) -> dict[str, Any]:
    """Resident memory in MiB and number of live tensors after every 100 of ``requests``.

    Requests are drawn at random: prompts are truncated, budgets vary, and the kinds are single prompts, lists, several
    samples, trees, other length controllers and verifiers, and streams that are abandoned.
    """
    random = Random(0)
    tree = SpeculativeDecoder(decoder.target, decoder.drafts, decoder.tokenizer, tree=(2, 1), verifier="spec-infer")
    readings: list[dict[str, float]] = []
    done = 0
    with progress_bar(console, "requests", requests) as advance:
        while done < requests:
            before = done
            count = min(random.choice((1, 1, 1, random.randint(2, MOST))), requests - done)
            chosen = [random.choice(prompts) for _ in range(count)]
            chosen = [prompt[: random.randint(1, len(prompt))] for prompt in chosen]
            settings = sampling | {"max_new_tokens": random.randint(1, sampling["max_new_tokens"]), "seed": done}
            kind = random.choice(KINDS)
            if kind == "tree":
                tree.generate(chosen, **settings)
            elif kind == "samples":
                decoder.generate(chosen[0], n=count, **settings)
            elif kind == "stream" and decoder.tokenizer is not None:
                for _ in chosen:
                    next(decoder.stream(chosen[0], **settings))  # abandoned after the first piece
            elif kind == "length":
                decoder.generate(chosen, length=random.choice((Fixed(2), CumulativeConfidence(0.4))), **settings)
            else:
                decoder.generate(chosen, verifier="block" if kind == "block" else None, **settings)
            done += count
            for _ in range(count):
                advance()
            if done // EVERY > before // EVERY:
                readings.append({"requests": done, "resident_mib": resident(), "tensors": live_tensors()})
    return {"readings": readings}


def live_tensors() -> int:
    """Number of tensors that are still referenced."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def resident(process: int | Literal["self"] = "self") -> float:
    """Resident memory of a process in MiB, by default of this one; NaN if the system does not report it."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
