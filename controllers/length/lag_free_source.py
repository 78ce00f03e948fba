"""Probabilities from a lag-free head: of the token in hand, and of the one after it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..calibration import sigmoid
from ..feature_model import features
from ..lag_free_head import LagFreeHead, inputs
from ..origin import Origin
from ..said import Said
from ..warp import Warp
from .base import Step
from .source import AcceptanceSource, Judged


class LagFreeSource(AcceptanceSource):
    """A lag-free head and the embedding it reads.

    Args:
        head: the head; its weights are taken as they are now.
        embedding: (V, d) the draft's output embedding.
        mean: mean acceptance in the data.
        foresees: whether the head was taught what comes after the token in hand.
        origin: what the head was trained for, if that is known.
    """

    late = 0

    def __init__(
        self,
        head: LagFreeHead,
        embedding: Tensor,
        *,
        mean: float = 0.5,
        foresees: bool = True,
        origin: Origin | None = None,
    ) -> None:
        self.head = head.eval().requires_grad_(False)
        self.embedding, self.mean, self.foresees, self.origin = embedding.detach(), mean, foresees, origin
        # For one token the modules around the tensors take longer than what they compute.
        self.inner, self.out = ((layer.weight.detach(), layer.bias.detach()) for layer in (head.inner, head.out))
        self.shape = [head.hidden_size]
        self.means, self.scales = head.mean.tolist(), head.scale.tolist()

    def check_warp(self, warp: Warp) -> None:
        if self.origin is not None:
            self.origin.check_warp(warp)

    def judge(self, step: Step) -> Judged:
        said = [(x - m) / s for x, m, s in zip(features(*step.says()), self.means, self.scales, strict=True)]
        hidden = F.layer_norm(step.hidden.reshape(-1).float(), self.shape)
        embedding = F.layer_norm(self.embedding[step.token].float(), self.shape)
        x = torch.cat([torch.tensor(said, device=hidden.device), hidden, embedding])
        kept, then = F.linear(F.silu(F.linear(x, *self.inner)), *self.out).tolist()
        return Judged(sigmoid(kept), sigmoid(then) if self.foresees else None)

    @torch.inference_mode()
    def judge_all(self, said: list[Said], hidden: Tensor, tokens: list[int]) -> list[Judged]:
        """Judge N tokens at once, given the states (N, d) before them."""
        chances = torch.sigmoid(self.head(inputs(said), hidden, self.embedding[torch.tensor(tokens)])).tolist()
        return [Judged(kept, then if self.foresees else None) for kept, then in chances]
