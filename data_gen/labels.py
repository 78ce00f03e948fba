"""Acceptance labels of finished rollouts: what the draft would have said at every position, and whether it would pass.

SpecDec++ (Huang et al. 2024) §3.3: at each position of a target rollout X draw Y_i ~ q(·|prompt, X_<i) and store
P_i = min(1, p(Y_i|X_<i) / q(Y_i|X_<i)). One parallel forward of the draft scores all positions; so does one of the
target where the rollouts have not kept the distributions that X was drawn from, which are p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..controllers.sampling import SamplingParams
from ..infer.cached_model import CachedModel
from ..infer.random_source import draw
from .rollout import PaddedPrompts, Rollout, left_pad
from .vocabulary import can_read, readable

MAX_SCORES = 1 << 22  # logits held at once, B·T·V: larger pieces cost a CPU more in fresh memory than they save


@torch.inference_mode()
def label(
    target: CachedModel,
    draft: CachedModel,
    prompts: list[list[int]],
    rollouts: list[Rollout],
    uniforms: Tensor,
    warp: SamplingParams,
) -> list[tuple[list[int], list[float]]]:
    """(Y, P) for every rollout, up to the first token of it that the draft has no embedding for.

    Of a prompt that the draft cannot read they are empty.

    Args:
        prompts, rollouts: B prompts and the target's B rollouts X after them, at least one token each.
        uniforms: (B, T) in [0, 1), T at least the longest rollout's length; number i decides Y_i.
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
            target, draft, [prompts[row] for row in some], [read[row] for row in some], uniforms[some], warp
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
    target: CachedModel,
    draft: CachedModel,
    prompts: list[list[int]],
    rollouts: list[Rollout],
    uniforms: Tensor,
    warp: SamplingParams,
) -> list[tuple[list[int], list[float]]]:
    text, longest = align(prompts, rollouts, target.device)

    def logits(model: CachedModel) -> Tensor:  # (B, T, V)
        model.start(text.tokens.shape[1])
        scores, _ = model.forward(text.tokens, keep=longest, padding=text.padding, positions=text.positions)
        return scores[..., : target.vocab_size]  # models of one tokenizer may pad their rows apart

    q, likely = warp.top(logits(draft))  # (B, T, k)
    choice = draw(q, uniforms[:, :longest].to(q.device)).unsqueeze(-1)  # (B, T, 1)
    y, q_y = choice if likely is None else likely.gather(-1, choice), q.gather(-1, choice)
    del q, likely
    kept = [(rollout.likely, rollout.probabilities) for rollout in rollouts]
    if all(likely is not None for likely, _ in kept):
        p_tokens, p = (
            stack([part for part in parts if part is not None], longest) for parts in zip(*kept, strict=True)
        )
        p_y = torch.where(p_tokens == y, p, 0.0).sum(-1)
    else:
        p_y = warp(logits(target)).gather(-1, y).squeeze(-1)
    accepted = (p_y / q_y.squeeze(-1)).clamp(max=1.0)
    return [
        (tokens_y[: len(rollout.tokens)], accept[: len(rollout.tokens)])
        for tokens_y, accept, rollout in zip(y.squeeze(-1).tolist(), accepted.tolist(), rollouts, strict=True)
    ]


def align(prompts: list[list[int]], rollouts: list[Rollout], device: torch.device) -> tuple[PaddedPrompts, int]:
    """Prompts with their rollouts (B, P + T - 1), and T: how many of the last columns are scored."""
    # Prompts end in one column, so that the T positions that are scored (the prompt's last, and those of X but its
    # last, which is scored and never read) stand in the same columns of every row: no other logits are computed.
    longest = max(len(rollout.tokens) for rollout in rollouts)
    padded = left_pad(prompts, device)
    tail = stack([torch.tensor(rollout.tokens[:-1], dtype=torch.long) for rollout in rollouts], longest - 1).to(device)
    text = PaddedPrompts(
        torch.cat([padded.tokens, tail], 1), torch.cat([padded.real, torch.ones_like(tail, dtype=torch.bool)], 1)
    )
    return text, longest


def stack(rows: list[Tensor], length: int) -> Tensor:
    """Rows (t, ...) of unequal t, filled up with zeros at the end to (B, length, ...)."""
    result = rows[0].new_zeros(len(rows), length, *rows[0].shape[1:])
    for row, values in enumerate(rows):
        result[row, : len(values)] = values
    return result
