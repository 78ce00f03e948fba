"""Draft signals: three features of a drafted token and the distribution it was drawn from."""

from __future__ import annotations

import torch
from torch import Tensor

DraftSignals = tuple[float, float, float]
"""Confidence q(y), top probability max q, and the entropy of q in nats.

At temperature 0, where q is a point mass, all three are those of the softmax at temperature 1.
"""


def signals_tensor(token: int, chosen: Tensor | None, q: Tensor, logits: Tensor) -> Tensor:
    """(3,) draft signals of ``token``, float32, computed on the device without synchronization.

    Args:
        chosen: () q(y); None if it is 1.
        q: (…, k) the distribution, without the tokens excluded by sampling.
        logits: (…, V) the draft's logits.
    """
    unwarped = torch.softmax(logits.flatten().float(), -1)
    if chosen is None:  # y is an arg-max
        return torch.stack([unwarped[token], unwarped[token], torch.special.entr(unwarped).sum()])
    top = q.max().float()
    top = torch.where(top == 1.0, unwarped.max(), top)
    return torch.stack([chosen.float(), top, torch.special.entr(q).sum().float()])


def draft_signals(chosen: list[float], tokens: list[int], q: Tensor, logits: Tensor) -> list[DraftSignals]:
    """Draft signals of N tokens, equal to those of :class:`~.length.Step`.

    Args:
        chosen: (N,) q(y) of each.
        tokens: (N,) y.
        q: (N, k) the distributions, without the tokens excluded by sampling.
        logits: (N, V) the draft's logits.
    """
    top, entropy = q.max(-1).values.tolist(), torch.special.entr(q).sum(-1).tolist()
    unwarped = torch.softmax(logits.float(), -1)
    own = unwarped.gather(1, torch.tensor(tokens, device=q.device).unsqueeze(1)).squeeze(1).tolist()
    best, doubt = unwarped.max(-1).values.tolist(), torch.special.entr(unwarped).sum(-1).tolist()
    return [
        (own[n] if q_y == 1.0 else q_y, best[n] if top[n] == 1.0 else top[n], doubt[n] if q_y == 1.0 else entropy[n])
        for n, q_y in enumerate(chosen)
    ]
