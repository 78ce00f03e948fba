"""A logistic model of acceptance on the draft's own distribution: log q(y), log(1 - max q), the entropy of q.

No hidden states and four numbers: the baseline that an acceptance head has to beat, and a controller of its own. It
predicts the current token, with no lag. A token's place in the draft is no feature: given that all tokens before it
were accepted, they follow the target's distribution, whatever the place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SMALLEST = 1e-4  # 1 - max q is no smaller than this: below it, it is mostly rounding


def features(confidence: float, top: float, entropy: float) -> tuple[float, float, float]:
    """From q(y), max q and H(q) in nats to what the model is linear in.

    The doubt 1 - max q counts by its logarithm: whether it is 0.1 or 0.01 matters, and max q itself hardly tells.
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
