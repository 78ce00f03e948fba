"""Acceptance rates along the target's output: Σ_v min(p(v), q(v)) at every token (Leviathan et al. 2023).

This is the probability that token-wise verification accepts a token drawn from q at that position. One forward of the
draft computes it for all positions.
"""

from __future__ import annotations

import torch

from ..controllers.sampling import SamplingParams
from ..infer.models import LanguageModel
from .labels import first, kept_distributions
from .rollout import Rollout
from .scores import MAX_SCORES, scores
from .vocabulary import can_read, readable


@torch.inference_mode()
def overlap(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: list[list[int]],
    rollouts: list[Rollout],
    sampling: SamplingParams,
) -> list[list[float]]:
    """Σ_v min(p_i, q_i) at every token of every rollout, both distributions under the sampling parameters.

    It is 0 after a token outside the draft's vocabulary, where nothing can be drafted.

    Args:
        prompts, rollouts: B prompts and the target's outputs under ``sampling``, at least one token each.
    """
    # The position of the first unreadable token can still be drafted, from the tokens before it.
    read = [
        first(rollout, readable(rollout.tokens, draft.vocab_size) + 1 if can_read(prompt, draft.vocab_size) else 0)
        for prompt, rollout in zip(prompts, rollouts, strict=True)
    ]
    rows = [row for row, rollout in enumerate(read) if rollout.tokens]
    longest = max((len(rollout.tokens) for rollout in read), default=0)
    chunk = max(1, MAX_SCORES // max(1, longest * target.vocab_size))
    result = [[0.0] * len(rollout.tokens) for rollout in rollouts]
    for start in range(0, len(rows), chunk):
        some = rows[start : start + chunk]
        shares = _overlap_chunk(target, draft, [prompts[row] for row in some], [read[row] for row in some], sampling)
        for row, found in zip(some, shares, strict=True):
            result[row][: len(found)] = found
    return result


def _overlap_chunk(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: list[list[int]],
    rollouts: list[Rollout],
    sampling: SamplingParams,
) -> list[list[float]]:
    texts, size = [rollout.tokens for rollout in rollouts], target.vocab_size
    q = sampling(scores(draft, prompts, texts, size))  # (N, V), N tokens in all
    kept = kept_distributions(rollouts)
    if kept is not None:
        p, tokens = (part.to(q.device) for part in kept)
        inside = (tokens >= 0) & (tokens < q.shape[-1])  # the draft's vocabulary may be smaller
        q_there = q.gather(-1, tokens.long().clamp(0, q.shape[-1] - 1)).where(inside, 0.0)
        shared = torch.minimum(p, q_there).sum(-1)
    else:
        p = sampling(scores(target, prompts, texts, size))
        shared = torch.minimum(p[..., : q.shape[-1]], q).sum(-1)
    return [row.tolist() for row in torch.split(shared.clamp(max=1.0), [len(text) for text in texts])]
