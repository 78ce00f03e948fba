"""Evaluation on held-out prompts: loss, and each draft's agreement with the target."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from specpilot.controllers.sampling import SamplingParams
from torch import Tensor
from transformers import T5ForConditionalGeneration

from .model import forward
from .pairs import IGNORED, Pair, by_length, collate

SAMPLING = SamplingParams(1.0, 50)  # sampling parameters of the shipped models


@torch.inference_mode()
def overlaps(draft: T5ForConditionalGeneration, pairs: list[Pair]) -> list[Tensor]:
    """a = Σ_x min(p(x), q(x)), the probability that the target accepts a drafted token, at every token of the outputs.

    Under ``SAMPLING``; a tensor (T,) for each pair.
    """
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
