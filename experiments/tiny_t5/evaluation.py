"""Evaluation on held-out prompts: loss, and each draft's agreement with the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from specpilot.compare.table import Row
from specpilot.controllers.sampling import SamplingParams
from torch import Tensor
from transformers import T5ForConditionalGeneration

from .model import forward
from .pairs import IGNORED, Pair, by_length, collate

SAMPLING = SamplingParams(1.0, 50)  # sampling parameters of the shipped models
HARD = 0.3


@dataclass(frozen=True)
class Agreement:
    """Agreement of one draft with the target on prompts of one task and origin.

    Attributes:
        overlap: mean of a = Σ_x min(p(x), q(x)), the acceptance probability of a drafted token, over the positions of
            the target's sampled outputs.
        hard: share of positions with a < 0.3.
    """

    draft: str
    task: str
    origin: str
    prompts: int
    positions: int
    overlap: float
    hard: float

    @classmethod
    def of(cls, draft: T5ForConditionalGeneration, name: str, task: str, origin: str, pairs: list[Pair]) -> Agreement:
        """Measure ``draft``, which is called ``name``, on the target's outputs under ``SAMPLING``."""
        a = torch.cat(overlaps(draft, pairs))
        return cls(name, task, origin, len(pairs), len(a), float(a.mean()), float((a < HARD).float().mean()))

    def row(self) -> Row:
        """Its row in a table."""
        return {
            "task": self.task,
            "prompts from": self.origin,
            "prompts": str(self.prompts),
            "mean a": f"{self.overlap:.3f}",
            "share of positions with a < 0.3": f"{self.hard:.3f}",
        }


@torch.inference_mode()
def overlaps(draft: T5ForConditionalGeneration, pairs: list[Pair]) -> list[Tensor]:
    """a = Σ_x min(p(x), q(x)) under ``SAMPLING`` at every token of the outputs: a tensor (T,) for each pair."""
    result: dict[int, Tensor] = {}
    for rows in by_length(pairs, 4096, 0):
        batch = collate([pairs[i] for i in rows])
        assert batch.soft is not None
        p, likely = batch.soft
        a = torch.minimum(p, SAMPLING(forward(draft, batch)).gather(-1, likely)).sum(-1)  # (B, T)
        result |= {i: a[row, : len(pairs[i].output)] for row, i in enumerate(rows)}
    return [result[i] for i in range(len(pairs))]


@torch.inference_mode()
def held_out_loss(model: T5ForConditionalGeneration, pairs: list[Pair]) -> float:
    """Mean cross-entropy of the outputs' tokens, in nats."""
    total, count = 0.0, 0
    for rows in by_length(pairs, 4096, 0):
        batch = collate([pairs[i] for i in rows])
        logits = forward(model, batch).float()
        total += float(
            F.cross_entropy(logits.flatten(0, 1), batch.outputs.flatten(), ignore_index=IGNORED, reduction="sum")
        )
        count += int((batch.outputs != IGNORED).sum())
    return total / count
