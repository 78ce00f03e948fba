"""Batched rollouts: many prompts continued together, each under its own random numbers.

Rows are left-padded so that all write their next token to the same column of one preallocated KV cache; rows that are
done leave the batch, so that nobody waits for the longest. A row's tokens depend on its own uniforms, not on its
company.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..controllers.warp import Warp
from ..infer.cached_model import CachedModel

COMPACT_AT = 0.8  # drop finished rows once this share or less is still running: each drop copies the cache


@dataclass(frozen=True)
class PaddedPrompts:
    """Prompts of unequal length side by side: ``tokens`` (B, P), ``real`` (B, P) false on the padding at the left."""

    tokens: Tensor
    real: Tensor


def left_pad(prompts: list[list[int]], device: torch.device) -> PaddedPrompts:
    """Align prompts at their ends."""
    width = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), width, dtype=torch.long)
    real = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        real[row, width - len(prompt) :] = True
    return PaddedPrompts(tokens.to(device), real.to(device))


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF sampling: ``probabilities`` (..., V) and ``uniforms`` (...) in [0, 1) give tokens (...).

    The cumulative sum is in float64: a float32 uniform below 1 then never reaches past the last token of positive
    probability, and a token of probability 0 is never drawn.
    """
    cumulative = probabilities.double().cumsum(-1)
    points = uniforms.double().unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, points, right=True).squeeze(-1)


@torch.inference_mode()
def roll_out(
    model: CachedModel,
    prompts: list[list[int]],
    uniforms: Tensor,
    warp: Warp,
    stop_tokens: frozenset[int],
) -> list[list[int]]:
    """Continue every prompt until a stop token (included) or the budget.

    Args:
        prompts: B lists of token ids.
        uniforms: (B, T) in [0, 1); T is the budget, and the t-th number of a row decides its t-th token.
    """
    rows, budget = uniforms.shape
    device = model.device
    padded = left_pad(prompts, device)
    width = padded.tokens.shape[1]
    uniforms = uniforms.to(device)
    stops = torch.tensor(sorted(stop_tokens), dtype=torch.long, device=device)

    result = torch.zeros(rows, budget, dtype=torch.long, device=device)
    lengths = torch.full((rows,), budget, dtype=torch.long, device=device)
    alive = torch.arange(rows, device=device)  # which prompt each row of the batch belongs to
    running = torch.ones(rows, dtype=torch.bool, device=device)
    real = torch.ones(rows, width + budget, dtype=torch.bool, device=device)
    real[:, :width] = padded.real
    positions = (padded.real.cumsum(-1) - 1).clamp(min=0)  # (B, P)

    model.start(width + budget)
    padding = None if bool(padded.real.all()) else real
    tokens = padded.tokens
    for step in range(budget):
        end = width + step
        logits, _ = model.forward(
            tokens, keep=1, padding=None if padding is None else padding[:, :end], positions=positions
        )
        chosen = draw(warp(logits[:, -1]), uniforms[alive, step])  # (B,)
        result[alive[running], step] = chosen[running]
        stopped = running & torch.isin(chosen, stops)
        lengths[alive[stopped]] = step + 1
        running = running & ~stopped
        left = int(running.sum())
        if left == 0:
            break
        tokens, positions = chosen.unsqueeze(1), positions[:, -1:] + 1
        if left <= COMPACT_AT * len(running):
            rest = running.nonzero().squeeze(1)
            model.cache.select_rows(rest)
            alive, tokens, positions = alive[rest], tokens[rest], positions[rest]
            padding = None if padding is None else padding[rest]
            running = torch.ones(left, dtype=torch.bool, device=device)
    return [row[:length] for row, length in zip(result.tolist(), lengths.tolist(), strict=True)]
