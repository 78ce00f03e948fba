"""Acceptance labels of finished rollouts: the draft's token at every position and its acceptance probability.

SpecDec++ (Huang et al. 2024) §3.3: at each position of a target rollout X draw Y_i ~ q(·|prompt, X_<i) and store
P_i = min(1, p(Y_i|X_<i) / q(Y_i|X_<i)). One forward of the draft scores all positions. The distributions p are those
recorded in the rollouts, or come from one forward of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..controllers.sampling import SamplingParams
from ..infer.distribution import TokenDistribution
from ..infer.models import LanguageModel
from ..infer.random_source import draw
from .rollout import MISSING, Rollout
from .scores import MAX_SCORES, scores
from .vocabulary import can_read, readable


@torch.inference_mode()
def label(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: list[list[int]],
    rollouts: list[Rollout],
    uniforms: Tensor,
    sampling: SamplingParams,
) -> list[tuple[list[int], list[float]]]:
    """(Y, P) for every rollout, up to its first token outside the draft's vocabulary.

    Both are empty if the prompt has such a token.

    Args:
        prompts, rollouts: B prompts and the target's B rollouts X, at least one token each.
        uniforms: (B, T) in [0, 1), T at least the longest rollout's length; number i determines Y_i.
    """
    size = draft.vocab_size
    read = [
        first(rollout, readable(rollout.tokens, size) if can_read(prompt, size) else 0)
        for prompt, rollout in zip(prompts, rollouts, strict=True)
    ]
    rows = [row for row, rollout in enumerate(read) if rollout.tokens]
    longest = max((len(rollout.tokens) for rollout in read), default=0)
    chunk = max(1, MAX_SCORES // max(1, longest * target.vocab_size))
    labels: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    for start in range(0, len(rows), chunk):
        some = rows[start : start + chunk]
        found = _label_chunk(
            target, draft, [prompts[row] for row in some], [read[row] for row in some], uniforms[some], sampling
        )
        for row, label_row in zip(some, found, strict=True):
            labels[row] = label_row
    return labels


def first(rollout: Rollout, count: int) -> Rollout:
    """The first ``count`` tokens of ``rollout``."""
    return Rollout(
        rollout.tokens[:count],
        None if rollout.likely is None else rollout.likely[:count],
        None if rollout.probabilities is None else rollout.probabilities[:count],
    )


def _label_chunk(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: list[list[int]],
    rollouts: list[Rollout],
    uniforms: Tensor,
    sampling: SamplingParams,
) -> list[tuple[list[int], list[float]]]:
    texts = [rollout.tokens for rollout in rollouts]
    counts = [len(text) for text in texts]
    size = target.vocab_size
    drafted = scores(draft, prompts, texts, size)
    q = TokenDistribution.from_logits(sampling, drafted, kept=draft.kept_below(size))  # (N, k), N tokens in all
    points = torch.cat([row[:count] for row, count in zip(uniforms, counts, strict=True)])
    choice = draw(q.probabilities, points.to(drafted.device)).unsqueeze(-1)  # (N, 1)
    y, q_y = choice if q.tokens is None else q.tokens.gather(-1, choice), q.probabilities.gather(-1, choice)
    del drafted, q
    kept = kept_distributions(rollouts)
    p, likely = kept or sampling.top(scores(target, prompts, texts, size))
    if likely is None:
        p_y = p.gather(-1, y).squeeze(-1)
    else:
        p_y = torch.where(likely.to(y.device) == y, p.to(y.device), 0.0).sum(-1)
    accepted = (p_y / q_y.squeeze(-1)).clamp(max=1.0)
    return [
        (tokens.tolist(), accept.tolist())
        for tokens, accept in zip(torch.split(y.squeeze(-1), counts), torch.split(accepted, counts), strict=True)
    ]


def kept_distributions(rollouts: list[Rollout]) -> tuple[Tensor, Tensor] | None:
    """(N, k) probabilities and their tokens, rollout by rollout; None if the rollouts did not record them."""
    likely: list[Tensor] = []
    probabilities: list[Tensor] = []
    for rollout in rollouts:
        if rollout.likely is None or rollout.probabilities is None:
            return None
        likely += rollout.likely
        probabilities += rollout.probabilities
    return pad_sequence(probabilities, batch_first=True), pad_sequence(likely, batch_first=True, padding_value=MISSING)
