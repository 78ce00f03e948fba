"""A logistic model of acceptance on features of the draft's distribution: log q(y), log(1 - max q), the entropy of q.

It has four parameters, uses no hidden states, and predicts the current token without lag. It is a controller, and the
baseline of acceptance heads. The position in the draft is not a feature: given that all earlier tokens were accepted,
they follow the target's distribution at every position.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SMALLEST = 1e-4  # lower bound of 1 - max q, which is mostly rounding below


def features(confidence: float, top: float, entropy: float) -> tuple[float, float, float]:
    """The model's inputs, from q(y), max q and H(q) in nats.

    1 - max q enters by its logarithm, which distinguishes 0.1 from 0.01.
    """
    return math.log(max(confidence, 1e-30)), math.log(max(1.0 - top, SMALLEST)), entropy


class FeatureModel(nn.Module):
    """``sigmoid(bias + confidence·log q(y) + doubt·log(1 - max q) + entropy·H(q))``; the arguments are coefficients."""

    def __init__(self, bias: float = 0.0, confidence: float = 0.0, doubt: float = 0.0, entropy: float = 0.0) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(bias))
        self.weight = nn.Parameter(torch.tensor([confidence, doubt, entropy]))

    def forward(self, features: Tensor) -> Tensor:
        """Logits (…) of acceptance for :func:`features` (…, 3)."""
        return features @ self.weight + self.bias
