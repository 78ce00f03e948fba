"""Perplexity of outputs under the target at temperature 1 (Qin et al. 2025, eq. 1): exp(-(1/N) Σ log p(x_t | x_<t)).

It takes a forward of the target over the whole text, so it is computed when the clock has stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...infer.models import LanguageModel, TextReader
from ..interval import interval


@dataclass(frozen=True)
class Likelihood:
    """Log likelihood of one output under the target: Σ log p in nats over its tokens, the end token included."""

    log_p: float
    tokens: int


@torch.inference_mode()
def likelihood(target: LanguageModel, prompt: list[int], tokens: list[int]) -> Likelihood:
    """Of ``tokens`` after ``prompt`` under the model as it is: temperature 1, no top-k, no top-p."""
    reader, first = TextReader.begin(target, prompt, len(tokens))
    logits, _ = reader.read([*first, *tokens[:-1]], keep=len(tokens))
    log_p = logits.float().log_softmax(-1)  # (N, V)
    chosen = torch.tensor(tokens, device=log_p.device).unsqueeze(1)
    return Likelihood(float(log_p.gather(1, chosen).cpu().double().sum()), len(tokens))


def perplexity(found: Sequence[Likelihood]) -> dict[str, float]:
    """Of all outputs' tokens together, and its 95 % interval over resampled outputs."""
    return interval(
        lambda log_p, tokens: np.exp(-log_p / tokens),
        np.array([one.log_p for one in found]),
        np.array([one.tokens for one in found]),
    ).as_dict()


def perplexity_change(found: Sequence[Likelihood], baseline: Sequence[Likelihood]) -> dict[str, float]:
    """PPL/PPL_baseline - 1 on the same prompts, and its 95 % interval over resampled prompts."""
    return interval(
        lambda a, n, b, m: np.exp(b / m - a / n) - 1,
        *(np.array([getattr(one, name) for one in runs]) for runs in (found, baseline) for name in ("log_p", "tokens")),
    ).as_dict()
