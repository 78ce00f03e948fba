"""The measured pair: a random pair of a real size, read as it is on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

import torch
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models import CausalLM, language_model
from specpilot.models.forwards import FixedShapes, Graphs, Padded
from specpilot.models.fused_layers import FusedLayers
from transformers import PreTrainedModel

from ..synthetic_pair import Shape

SHAPES = {
    "Llama-3.1-8B": Shape(),
    "Llama-3.2-1B": Shape(layers=16, draft_layers=2, hidden=2048, intermediate=8192),
    "Qwen3-0.6B": Shape(
        layers=28, draft_layers=2, hidden=1024, intermediate=3072, heads=16, kv_heads=8, vocabulary=151936
    ),
    "tiny": Shape(
        layers=3, draft_layers=1, hidden=32, intermediate=64, heads=2, kv_heads=1, vocabulary=1024, acceptance=0.8
    ),
}
PAIRS = ("Llama-3.1-8B", "Llama-3.2-1B", "tiny")  # whose first layers draft
REPEATS = 20


def reader(model: PreTrainedModel, graphs: Graphs) -> CausalLM:
    """Return ``model`` behind the model protocol with the forward that it has on a GPU.

    On a CPU the same code runs without CUDA graphs.
    """
    wrapped = language_model(model, graphs=graphs)
    assert isinstance(wrapped, CausalLM)
    if model.device.type == "cpu":
        wrapped.packed, wrapped.reads_drawn = model, True
        fused = FusedLayers(model) if FusedLayers.fits(model) else None
        reason = "the program for GPUs is tried on a CPU"
        wrapped.strategy = Padded(reason) if graphs == "off" else FixedShapes(wrapped, reason, fused)
        wrapped.snapshot = None  # weights have become views since
    return wrapped


@dataclass(frozen=True)
class Subject:
    """A measured pair.

    Attributes:
        name: name of the pair's sizes, a key of ``SHAPES``.
        target, draft: the models.
        graphs: whether CUDA graphs run the forwards: ``on``, ``compiled`` or ``off``.
        bandwidth: bandwidth of the device's memory in TB/s; None if it is not known.
        decoders: the decoders that were made, by their options.
    """

    name: str
    target: PreTrainedModel
    draft: PreTrainedModel
    graphs: Graphs
    bandwidth: float | None = None
    decoders: dict[Any, SpeculativeDecoder] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.target.device

    @property
    def shape(self) -> Shape:
        return SHAPES[self.name]

    @cached_property
    def decoder(self) -> SpeculativeDecoder:
        return self.decoder_with()

    def decoder_with(self, **options: Any) -> SpeculativeDecoder:
        """Return the decoder of the pair with ``options``; calls with the same options return the same decoder."""
        key = tuple(sorted(options.items()))
        if key not in self.decoders:
            models = reader(self.target, self.graphs), reader(self.draft, self.graphs)
            self.decoders[key] = SpeculativeDecoder(*models, **options)
        return self.decoders[key]


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has completed all launched kernels."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(device: torch.device, call: Callable[[], Any]) -> float:
    """Return the wall time in seconds of a call and of the kernels that it launches."""
    synchronize(device)
    started = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - started


def milliseconds(device: torch.device, call: Callable[[], Any]) -> float:
    """Return the median wall time in milliseconds of a repeated call and of the kernels that it launches."""
    times = [seconds(device, call) for _ in range(REPEATS + 5)]
    return round(median(times[5:]) * 1e3, 4)
