"""Σ_v min(p_v, q_v) of a target and a draft, with a gradient that needs few passes over the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Overlap(torch.autograd.Function):
    """With m_v = [q_v < p_v], the gradient by the logit z_v is q_v (m_v - Σ_u q_u m_u)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, p: Tensor) -> Tensor:
        q = logits.float().softmax(-1)
        kept = q * (q < p)
        ctx.save_for_backward(q, kept)
        ctx.dtype = logits.dtype
        return torch.minimum(p, q).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        q, kept = ctx.saved_tensors
        result = torch.addcmul(kept, q, kept.sum(-1, keepdim=True), value=-1)
        return result.mul_(gradient.unsqueeze(-1)).to(ctx.dtype), None


def overlap(logits: Tensor, p: Tensor) -> Tensor:
    """The probability (N,) that a token of the softmax q of ``logits`` (N, M) is accepted by ``p`` (N, M)."""
    return _Overlap.apply(logits, p)  # type: ignore[no-any-return, no-untyped-call]
