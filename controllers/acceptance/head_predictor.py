"""Probabilities from an acceptance head (SpecDec++, Huang et al. 2024), which judges what the draft has read.

â_i is read off the hidden state at y_i. That state exists only after the forward that already proposes y_{i+1}, so the
token in hand is not judged yet: the head is one token late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from ..sampling import SamplingParams
from .acceptance_head import AcceptanceHead
from .calibration import Calibration, Sigmoid
from .predictor import AcceptancePredictor, Prediction

if TYPE_CHECKING:
    from ..length.base import Step


class HeadPredictor(AcceptancePredictor):
    """A head and what its logits mean.

    Args:
        head: the head; its weights are taken as they are now.
        calibration: by default ``sigmoid``, the head's own probability.
        mean: mean acceptance in the data.
        sampling: sampling parameters of the data, if they are known.
    """

    lag = 1

    def __init__(
        self,
        head: AcceptanceHead,
        calibration: Calibration | None = None,
        mean: float = 0.5,
        sampling: SamplingParams | None = None,
    ) -> None:
        self.calibration = calibration or Sigmoid()
        self.mean, self.sampling = mean, sampling
        # The bare tensors: for one small state, calling modules takes longer than what they compute.
        self.blocks = [(block.linear.weight.detach(), block.linear.bias.detach()) for block in head.residual_blocks()]
        self.out = head.out.weight.detach(), head.out.bias.detach()

    def predict(self, step: Step) -> Prediction:
        return Prediction(self.probability(step.hidden))

    def probability(self, hidden: Tensor) -> float:
        """The calibrated ``head.probability`` of one state (d,), without the modules around it."""
        x = hidden.to(self.out[0].dtype)
        for weight, bias in self.blocks:
            x = x + F.silu(F.linear(x, weight, bias))
        return self.calibration(float(F.linear(x, *self.out)))
