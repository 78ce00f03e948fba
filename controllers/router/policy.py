"""The policy of assistant selection (Huang et al. 2024, §3.1): three linear layers, hidden size 512, tanh, softmax.

Shapes: embedding x (…, d) → logits (…, A), one for each arm.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from ...common.errors import InputError
from ..sampling import SamplingParams
from .base import Router, certain

WIDTH = 512


class RouterPolicy(nn.Module):
    """π(·|x) = softmax(MLP(x)) over ``arms``, from the target's embedding of the prompt (``hidden_size``,)."""

    def __init__(self, hidden_size: int, arms: int, width: int = WIDTH) -> None:
        super().__init__()
        for name, value, least in (("hidden_size", hidden_size, 1), ("arms", arms, 2), ("width", width, 1)):
            if value < least:
                raise InputError(f"{name}={value}: must be at least {least}")
        self.hidden_size, self.arms, self.width = hidden_size, arms, width
        self.first = nn.Linear(hidden_size, width)
        self.second = nn.Linear(width, width)
        self.out = nn.Linear(width, arms)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (…, A) of embeddings (…, d)."""
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        logits: Tensor = self.out(hidden)
        return logits

    @torch.no_grad()
    def absorb(self, scale: Tensor) -> None:
        """Fold ``scale`` (d,) into the first layer, which was trained on ``x / scale``, so that it takes ``x``."""
        self.first.weight.div_(scale)


class PolicyRouter(Router):
    """Chooses the most probable arm of a policy.

    Args:
        policy: the policy.
        sample: draw the arm from the policy instead.
        sampling: sampling parameters of the training data, if known.
    """

    def __init__(self, policy: RouterPolicy, *, sample: bool = False, sampling: SamplingParams | None = None) -> None:
        self.policy, self.sample, self.sampling, self.arms = policy.eval(), sample, sampling, policy.arms

    def check_sampling(self, sampling: SamplingParams) -> None:
        if self.sampling is not None and not sampling.same_as(self.sampling):
            warnings.warn(
                f"the router was trained under {self.sampling}, decoding uses {sampling}: the output stays exact, "
                "but another arm may be faster",
                stacklevel=2,
            )

    def probabilities(self, embedding: Tensor) -> list[float]:
        """π(·|x) of one embedding (d,)."""
        with torch.inference_mode():
            logits = self.policy(embedding.to(self.policy.out.weight))
            result: list[float] = logits.cpu().double().softmax(-1).tolist()
        return result

    def weigh(self, embedding: Tensor) -> list[float]:
        probabilities = self.probabilities(embedding)
        return probabilities if self.sample else certain(probabilities.index(max(probabilities)), self.arms)
