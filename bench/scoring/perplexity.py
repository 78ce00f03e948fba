"""Perplexity of outputs under the unwarped target (Qin et al. 2025, eq. 1): exp(-(1/N) Σ log p(x_t | x_<t)).

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
    """What the target thinks of one output: Σ log p in nats, over its tokens, the end token included."""

    log_p: float
    tokens: int


@torch.inference_mode()
def likelihood(target: LanguageModel, prompt: list[int], tokens: list[int]) -> Likelihood:
    """Of ``tokens`` after ``prompt`` under the model as it is: temperature 1, no top-k, no top-p."""
    reader, begun = TextReader.begin(target, prompt, len(tokens))
    logits, _ = reader.read([*begun, *tokens[:-1]], keep=len(tokens))
    laws = logits.float().log_softmax(-1)  # (N, V)
    said = torch.tensor(tokens, device=laws.device).unsqueeze(1)
    return Likelihood(float(laws.gather(1, said).cpu().double().sum()), len(tokens))


def perplexity(found: Sequence[Likelihood]) -> dict[str, float]:
    """Of all outputs' tokens together, and its 95 % interval over resampled outputs."""
    value, low, high = interval(
        lambda log_p, tokens: np.exp(-log_p / tokens),
        np.array([one.log_p for one in found]),
        np.array([one.tokens for one in found]),
    )
    return {"value": value, "low": low, "high": high}


def perplexity_change(found: Sequence[Likelihood], baseline: Sequence[Likelihood]) -> dict[str, float]:
    """PPL/PPL_baseline - 1 on the same prompts, and its 95 % interval over resampled prompts."""
    value, low, high = interval(
        lambda a, n, b, m: np.exp(b / m - a / n) - 1,
        *(np.array([getattr(one, name) for one in runs]) for runs in (found, baseline) for name in ("log_p", "tokens")),
    )
    return {"value": value, "low": low, "high": high}
