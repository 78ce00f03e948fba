"""Quality of outputs: perplexity under the target at temperature 1, and ROUGE-L against a reference (Lin 2004).

Perplexity is exp(-(1/N) Σ log p(x_t | x_<t)) (Qin et al. 2025, eq. 1). It needs a target forward over the whole text,
which is not part of the measured time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from specpilot.common.errors import optional_import
from specpilot.compare.interval import interval
from specpilot.models import LanguageModel, TextReader


@dataclass(frozen=True)
class Likelihood:
    """Log likelihood of one output under the target, in nats, summed over its tokens including the end token."""

    log_p: float
    tokens: int


@torch.inference_mode()
def likelihood(target: LanguageModel, prompt: list[int], tokens: list[int]) -> Likelihood:
    """Return the likelihood of ``tokens`` after ``prompt`` at temperature 1 without top-k and top-p."""
    reader, first = TextReader.begin(target, prompt, len(tokens))
    logits, _ = reader.read([*first, *tokens[:-1]], keep=len(tokens))
    log_p = logits.float().log_softmax(-1)  # (N, V)
    chosen = torch.tensor(tokens, device=log_p.device).unsqueeze(1)
    return Likelihood(float(log_p.gather(1, chosen).cpu().double().sum()), len(tokens))


def perplexity(likelihoods: Sequence[Likelihood]) -> dict[str, float]:
    """Return the perplexity over the tokens of all outputs, and its 95 % interval over resampled outputs."""
    return interval(
        lambda log_p, tokens: np.exp(-log_p / tokens),
        np.array([likelihood.log_p for likelihood in likelihoods]),
        np.array([likelihood.tokens for likelihood in likelihoods]),
    ).to_dict()


def perplexity_change(likelihoods: Sequence[Likelihood], baseline: Sequence[Likelihood]) -> dict[str, float]:
    """Return PPL/PPL_baseline - 1 on the same prompts, and its 95 % interval over resampled prompts."""
    return interval(
        lambda a, n, b, m: np.exp(b / m - a / n) - 1,
        *(
            np.array([getattr(run, name) for run in runs])
            for runs in (likelihoods, baseline)
            for name in ("log_p", "tokens")
        ),
    ).to_dict()


@cache
def _scorer() -> Any:
    with optional_import("bench"):
        from rouge_score.rouge_scorer import RougeScorer  # slow to import

    return RougeScorer(["rougeL"], use_stemmer=True)


def rouge_l(text: str, reference: str) -> float:
    """Return the F1 score of the longest common subsequence of words, in [0, 1]; 0 if either text is empty.

    Raises:
        InputError: rouge-score is not installed.
    """
    return float(_scorer().score(reference, text)["rougeL"].fmeasure)
