"""SpecDec++ (Huang et al. 2024, Algorithm 2): stop when a rejection so far is too likely, ``1 - Π â_i > h``.

â_i is read off the hidden state at y_i, which exists only once the draft has read y_i, and that same forward already
proposes y_{i+1}. So at y_{i+1} the product runs to i: the head judges all tokens but the one in hand.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from ..acceptance_head import AcceptanceHead
from ..checkpoint import Controller
from ..errors import InputError
from ..warp import Warp
from .base import LengthController, Step


class AcceptanceLength(LengthController):
    """``trained_as`` is the checkpoint the head comes from, if any."""

    def __init__(self, head: AcceptanceHead, threshold: float, trained_as: Controller | None = None) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold={threshold}: the acceptance head's stopping threshold must be in [0, 1]")
        self.head, self.threshold, self.trained_as = head, threshold, trained_as
        # The bare tensors: for one small state, calling modules takes longer than what they compute.
        self.blocks = [(block.linear.weight.detach(), block.linear.bias.detach()) for block in head.residual_blocks()]
        self.out = head.out.weight.detach(), head.out.bias.detach()
        self.survival = 1.0

    def check_warp(self, warp: Warp) -> None:
        if self.trained_as is not None:
            self.trained_as.check_warp(warp)

    def start_round(self) -> bool:
        self.survival = 1.0
        return True

    def observe(self, step: Step) -> bool:
        if step.index > 1:  # the state before the first token belongs to a token that is no draft
            self.survival *= self.probability(step.hidden)
        return 1.0 - self.survival <= self.threshold

    def probability(self, hidden: Tensor) -> float:
        """``head.probability`` of one state (…, d), without the modules around it."""
        x = hidden.to(self.out[0].dtype)
        for weight, bias in self.blocks:
            x = x + F.silu(F.linear(x, weight, bias))
        return 1.0 / (1.0 + math.exp(-max(float(F.linear(x, *self.out)), -700.0)))  # exp(700) still is a number
