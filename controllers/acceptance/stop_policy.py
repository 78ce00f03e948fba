"""The stop policy: a small network that decides after each drafted token whether to draft another.

Learning to Draft (Zhang et al. 2026, arXiv 2603.01639) trains a policy by reinforcement, with the tokens per second of
a draft-and-verify cycle as reward. It observes the cumulative log probabilities of a tree's last level, the depth and
the length of the text. What differs here: drafts are chains, so it observes the cumulative log q of the chain, the
newest token's log q and log(1 - max q), and the depth. It also observes the machine's costs, where the paper trains a
policy for a machine, and not the length of the text, on which no cost depends. There is no second policy for how many
drafted tokens are verified: all are. It is trained by REINFORCE (:mod:`specpilot.train.stop_policy_module`), where the
paper has PPO.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checkpoints.config import WIDEST, check_range
from .feature_model import SMALLEST
from .length_head import HORIZON
from .predictor import CostConfig

LEAST_CONFIDENCE = 1e-6  # of q in logarithms
OBSERVED = 6  # see :func:`observation`


def observation(survival: float, confidence: float, top: float, depth: int, price: float, start: float) -> list[float]:
    """(6,) what the policy observes at a token, every number of size 1 or so.

    Args:
        survival: product of q(y) over the draft so far.
        confidence, top: q(y) and max q of the newest token.
        depth: tokens drafted so far.
        price, start: time of one more drafted token, and what a round that drafts takes longer, in rounds without.
    """
    return [
        math.log(max(survival, LEAST_CONFIDENCE)) / 4, math.log(max(confidence, LEAST_CONFIDENCE)) / 4,
        math.log(max(1.0 - top, SMALLEST)) / 4, depth / HORIZON, math.log(max(price, LEAST_CONFIDENCE)) / 2, start,
    ]  # fmt: skip


def observations(drafted: Tensor, price: Tensor, start: Tensor) -> Tensor:
    """(M, K, 6) the :func:`observation` of each token of M drafts of K tokens.

    Args:
        drafted: (M, K, 2) q(y) and max q.
        price, start: (M,).
    """
    log_q = drafted[..., 0].clamp(min=LEAST_CONFIDENCE).log()
    survival = log_q.cumsum(1).clamp(min=math.log(LEAST_CONFIDENCE))
    doubt = (1.0 - drafted[..., 1]).clamp(min=SMALLEST).log()
    depth = torch.arange(1, log_q.shape[1] + 1, device=drafted.device) / HORIZON
    whole = depth, price.clamp(min=LEAST_CONFIDENCE).log()[:, None] / 2, start[:, None]
    return torch.stack([survival / 4, log_q / 4, doubt / 4, *(each.expand_as(log_q) for each in whole)], -1)


class StopPolicy(nn.Module):
    """π(continue | observation) = sigmoid of an MLP with one hidden layer, ℝ^6 → ℝ."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(OBSERVED, width), nn.Linear(width, 1)

    def forward(self, observed: Tensor) -> Tensor:
        """Logits (…) of drafting another token, for :func:`observation` (…, 6)."""
        return self.out(F.relu(self.inner(observed))).squeeze(-1)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class StopPolicyConfig(CostConfig):
    """A stop policy.

    Attributes:
        width: hidden units.
    """

    kind = "stop-policy"
    title = "Stop policy"
    summary = (
        "Decides after each drafted token whether to draft another, from the draft's probabilities, the depth and the "
        "costs; trained by REINFORCE on tokens per second (after Learning to Draft, Zhang et al. 2026). `cost.json` is "
        "what `specpilot bench cost --output cost.json` measures."
    )

    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("width", self.width, 1, WIDEST)

    def module(self) -> StopPolicy:
        return StopPolicy(self.width)

    def rows(self) -> dict[str, str]:
        return {"hidden units": f"{self.width}", **super().rows()}
