"""A model's answers to prompts, with the distribution that each token was drawn from.

Up to rounding, an answer depends on its own random numbers, not on the batch.
"""

from __future__ import annotations

from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import load_file, save_file
from specpilot.common.files import replacing
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.rollout import roll_out
from specpilot.models import language_model
from torch import Tensor
from transformers import T5ForConditionalGeneration

from .pairs import Pair

ROWS = 256
CHUNK = 2048


def answer(
    model: T5ForConditionalGeneration, prompts: list[list[int]], uniforms: Tensor, sampling: SamplingParams, end: int
) -> list[Pair]:
    """Return the model's outputs, up to the token ``end`` or the budget, and the distributions they were drawn from.

    Args:
        prompts: N lists of tokens.
        uniforms: (N, T) numbers in [0, 1); a row's t-th determines its t-th token, and T is the budget.
        sampling: sampling parameters that keep few tokens (temperature 0 or a top-k).
    """
    rows = roll_out(
        language_model(model), prompts, list(uniforms), sampling, frozenset([end]), batch_size=ROWS
    )  # fmt: skip
    answers = []
    for prompt, row in zip(prompts, rows, strict=True):
        assert row.p is not None
        assert row.p.tokens is not None
        answers.append(Pair(prompt, row.tokens, (row.p.probabilities, row.p.tokens)))
    return answers


def kept_answers(
    model: T5ForConditionalGeneration,
    prompts: list[list[int]],
    folder: Path,
    *,
    sampling: SamplingParams,
    budget: int,
    end: int,
    seed: int,
) -> list[Pair]:
    """Return the results of :func:`answer` for all prompts, in chunks that are stored in ``folder`` and reused."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs: list[Pair] = []
    for start in track(range(0, len(prompts), CHUNK), f"the target's {folder.name}"):
        path, some = folder / f"{start // CHUNK:04d}.safetensors", prompts[start : start + CHUNK]
        if not path.exists():
            generator = torch.Generator().manual_seed((seed << 32) + start)
            answers = answer(model, some, torch.rand(len(some), budget, generator=generator), sampling, end)
            labels = [pair.soft for pair in answers if pair.soft is not None]
            with replacing(path) as temporary:
                save_file(
                    {
                        "lengths": torch.tensor([len(pair.output) for pair in answers]),
                        "tokens": torch.tensor([token for pair in answers for token in pair.output]),
                        "probabilities": torch.cat([p for p, _ in labels]).bfloat16(),
                        "likely": torch.cat([ids for _, ids in labels]).short(),  # vocabularies up to 32,767
                    },
                    temporary,
                )
        stored = load_file(path)
        lengths: list[int] = stored["lengths"].tolist()
        parts = [torch.split(stored[name], lengths) for name in ("tokens", "probabilities", "likely")]
        pairs += [Pair(prompt, tokens.tolist(), (p, ids)) for prompt, tokens, p, ids in zip(some, *parts, strict=True)]
    return pairs
