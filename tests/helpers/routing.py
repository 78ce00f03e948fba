"""Decoders with a router, and a router with predictable choices."""

from collections.abc import Sequence
from typing import Any

import torch
from specpilot.controllers.arms import Arm
from specpilot.controllers.router import Router
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.routing import LoadedArm, Routing
from specpilot.models import EarlyExit, language_model
from transformers import PreTrainedModel

KINDS = [
    Arm("draft", "one", "a"),
    Arm("draft", "two", "b"),
    Arm("exit", "exit:1", layer=1),
    Arm("autoregressive", "ar"),
]


def routed(
    target: PreTrainedModel, drafts: Sequence[PreTrainedModel], router: Router, lengths: Sequence[Any], *more: LoadedArm
) -> SpeculativeDecoder:
    """Return a decoder with a router over two drafts; with ``lengths`` also over an early exit and no draft."""
    reader = language_model(target)
    models = [*map(language_model, drafts), *([EarlyExit(reader, 1), None] if len(lengths) > len(drafts) else [])]
    arms = [LoadedArm(kind, model, length) for kind, model, length in zip(KINDS, models, lengths, strict=False)]
    return SpeculativeDecoder(target, None, routing=Routing(reader, router, [*arms, *more]))


class ArmsInTurn(Router):
    """Chooses the arms in turn."""

    def __init__(self, arms: int) -> None:
        self.arms, self.calls = arms, 0

    def weigh(self, embedding: torch.Tensor) -> list[float]:
        self.calls += 1
        self.embedding = embedding
        return [float(arm == (self.calls - 1) % self.arms) for arm in range(self.arms)]
