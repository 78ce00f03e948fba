"""Acceptance labels of finished rollouts: what the draft would have said at every position, and whether it would pass.

SpecDec++ (Huang et al. 2024) §3.3: at each position of a target rollout X draw Y_i ~ q(·|prompt, X_<i) and store
P_i = min(1, p(Y_i|X_<i) / q(Y_i|X_<i)). One parallel forward of each model scores all positions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..controllers.warp import Warp
from ..infer.cached_model import CachedModel
from ..infer.chance import draw
from ..infer.draft import fit_vocabulary
from .rollout import PaddedPrompts, left_pad

MAX_SCORES = 1 << 22  # logits held at once, B·T·V: larger pieces cost a CPU more in fresh memory than they save


@torch.inference_mode()
def label(
    target: CachedModel,
    draft: CachedModel,
    prompts: list[list[int]],
    continuations: list[list[int]],
    uniforms: Tensor,
    warp: Warp,
) -> list[tuple[list[int], list[float]]]:
    """(Y, P) for every rollout.

    Args:
        prompts, continuations: B prompts and the target's B rollouts X after them, at least one token each.
        uniforms: (B, T) in [0, 1), T at least the longest rollout's length; number i decides Y_i.
    """
    longest = max(map(len, continuations))
    chunk = max(1, MAX_SCORES // (longest * target.vocab_size))
    labels: list[tuple[list[int], list[float]]] = []
    for start in range(0, len(prompts), chunk):
        rows = slice(start, start + chunk)
        labels += _label_chunk(target, draft, prompts[rows], continuations[rows], uniforms[rows], warp)
    return labels


def _label_chunk(
    target: CachedModel,
    draft: CachedModel,
    prompts: list[list[int]],
    continuations: list[list[int]],
    uniforms: Tensor,
    warp: Warp,
) -> list[tuple[list[int], list[float]]]:
    # Prompts end in one column, so that the T positions that are scored (the prompt's last, and those of X but its
    # last, which is scored and never read) stand in the same columns of every row: no other logits are computed.
    longest = max(map(len, continuations))
    padded = left_pad(prompts, target.device)
    tail = pad_sequence([torch.tensor(x[:-1], dtype=torch.long) for x in continuations], batch_first=True)
    text = PaddedPrompts(  # (B, P + T - 1)
        torch.cat([padded.tokens, tail.to(target.device)], 1),
        torch.cat([padded.real, torch.ones_like(tail, dtype=torch.bool).to(target.device)], 1),
    )

    def distributions(model: CachedModel) -> Tensor:  # (B, T, V)
        model.start(text.tokens.shape[1])
        logits, _ = model.forward(text.tokens, keep=longest, padding=text.padding, positions=text.positions)
        return warp(fit_vocabulary(logits, target.vocab_size))

    q = distributions(draft)
    y = draw(q, uniforms[:, :longest].to(q.device))  # (B, T)
    q_y = q.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    del q
    p_y = distributions(target).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    accepted = (p_y / q_y).clamp(max=1.0)
    return [
        (tokens_y[: len(x)], accept[: len(x)])
        for tokens_y, accept, x in zip(y.tolist(), accepted.tolist(), continuations, strict=True)
    ]
