"""Ten thousand requests of all kinds through one decoder and one server: right texts, and memory that stays flat."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from ...infer.decoder import SpeculativeDecoder
from ...options import MemoryBenchOptions, SoakOptions
from ..load import load
from ..micro.memory import bench_memory
from ..workloads.soak import bench_soak
from .cases import Outcome

GROWTH = 0.2  # of the resident memory, from the first fifth of the requests to the last
PROBES = 8  # prompts whose greedy texts are compared


def through_a_decoder(requests: int, console: Console) -> Outcome:
    """``bench memory``; the greedy texts are the same before and after."""
    options = MemoryBenchOptions(requests=requests, limit=50, max_new_tokens=16)
    decoder, prompts = load(options)
    before = _greedy(decoder, prompts)
    readings = bench_memory(decoder, prompts, options.sampling, requests, console)["readings"]
    outcome = Outcome(attempts=requests)
    if _greedy(decoder, prompts) != before:
        outcome.note("greedy texts have changed")
    early, late = readings[len(readings) // 5], readings[-1]
    growth = late["resident_mib"] / early["resident_mib"] - 1
    outcome.note_growth(growth, GROWTH)
    if late["tensors"] > early["tensors"]:
        outcome.note(f"{late['tensors'] - early['tensors']} more tensors are alive")
    return outcome


def _greedy(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> list[str]:
    sampling: dict[str, Any] = {"max_new_tokens": 16, "temperature": 0}
    return [decoder.generate(prompt, **sampling).text for prompt in prompts[:PROBES]]


def through_a_server(requests: int, console: Console) -> Outcome:
    """``bench soak``: no good request is lost and no text is wrong, whatever the other clients do."""
    found = bench_soak(SoakOptions(requests=requests, cost=0.2), console)
    outcome = Outcome(attempts=requests)
    for name in ("lost", "garbled", "exit_code"):
        if found[name]:
            outcome.note(f"{name}: {found[name]}")
    outcome.note_growth(found["rss_growth"], GROWTH)
    return outcome
