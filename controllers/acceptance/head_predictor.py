"""The acceptance predictor of an acceptance head (SpecDec++, Huang et al. 2024).

â_i is computed from the hidden state at y_i, which exists only after the forward that proposes y_{i+1}. The current
token has no prediction yet: the lag is 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from ..sampling import SamplingParams
from .acceptance_head import AcceptanceHead
from .calibration import Calibration, Sigmoid
from .predictor import AcceptancePredictor

if TYPE_CHECKING:
    from ..length.base import Step


class HeadPredictor(AcceptancePredictor):
    """Predicts acceptance with a head and a calibration.

    Args:
        head: the head; its current weights are copied.
        calibration: maps logits to probabilities. Default: the sigmoid.
        mean: mean acceptance in the data.
        samplings: sampling parameters of the data, if known.
    """

    lag = 1

    def __init__(
        self,
        head: AcceptanceHead,
        calibration: Calibration | None = None,
        mean: float = 0.5,
        samplings: tuple[SamplingParams, ...] = (),
    ) -> None:
        self.calibration = calibration or Sigmoid()
        self.mean, self.samplings = mean, samplings
        # Plain tensors: for a single state, calling modules takes longer than their computation.
        self.blocks = [(block.linear.weight.detach(), block.linear.bias.detach()) for block in head.residual_blocks()]
        self.out = head.out.weight.detach(), head.out.bias.detach()

    def predict(self, step: Step) -> float:
        return self.probability(step.hidden)

    def probability(self, hidden: Tensor) -> float:
        """The calibrated acceptance probability for one state (d,), computed without calling modules."""
        x = hidden.to(self.out[0].dtype)
        for weight, bias in self.blocks:
            x = x + F.silu(F.linear(x, weight, bias))
        return self.calibration(float(F.linear(x, *self.out)))
