"""The stop policy's training: REINFORCE on drafts that stop after 1, 2, … tokens, as the router's on its arms.

A policy that goes on after token j with probability c_j stops after k tokens with probability Π_{j<k} c_j·(1 - c_k).
The reward of k is that of Learning to Draft (Zhang et al. 2026): the tokens that the round yields, by its seconds.
Costs are drawn anew for every example, since the policy observes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..controllers.acceptance.stop_policy import StopPolicy, StopPolicyConfig, observations
from ..controllers.length import LengthController
from ..controllers.length.policy import PolicyLength
from ..data_gen.draft_states import Examples
from ..simulate.trace import Trace
from .acceptance_module import AcceptanceDataModule, ReplayedModule
from .controller_module import Batch, seeded
from .options import StopPolicyTrainingOptions
from .rounds import BEYOND
from .router_data import Batch as RouterBatch
from .router_module import policy_loss

PRICES = 0.02, 0.8  # of a drafted token that are drawn, in rounds without a draft
STARTS = 0.0, 0.5  # of what a round that drafts takes longer


class StopPolicyModule(ReplayedModule):
    """The policy in training. The criterion without traces is the mean reward of its more probable actions."""

    options = StopPolicyTrainingOptions
    head: StopPolicy

    def __init__(self, settings: StopPolicyTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data)
        self.settings = settings
        self.criterion = self.criterion if self.traced else "greedy_reward"
        self.head = seeded(settings.seed, lambda: StopPolicy(settings.width))
        self.rewards: list[Tensor] = []  # (2,) of each validation batch: their sum, and how many

    @classmethod
    def configuration(
        cls, settings: StopPolicyTrainingOptions, dataset: dict[str, Any], best: dict[str, Any], common: dict[str, Any]
    ) -> StopPolicyConfig:
        return StopPolicyConfig(**common, width=settings.width, mean=best["mean"], rounds=best["examples"])

    @staticmethod
    def inputs(settings: StopPolicyTrainingOptions, examples: Examples, embedding: Tensor) -> Sequence[Tensor]:
        return (examples["drafted"],)

    @staticmethod
    def labels(examples: Examples) -> Tensor:
        return examples["kept"]

    def controllers(self) -> Callable[[Trace], LengthController]:
        policy = deepcopy(self.head).cpu()
        return lambda trace: PolicyLength(policy, self.mean, self.cost)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        drawn = self.uniforms(batch, 3)
        price = PRICES[0] * (PRICES[1] / PRICES[0]) ** drawn[:, 0]
        start = STARTS[0] + (STARTS[1] - STARTS[0]) * drawn[:, 1]
        logits, rewards = self._round(batch, price, start)
        chosen = RouterBatch(batch.inputs[0], rewards, drawn[:, 2])
        settings = self.settings
        loss = policy_loss(
            length_logits(logits), chosen, settings.gradient, settings.baseline, settings.entropy, self.total
        )
        return loss, loss.new_tensor(len(rewards))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        alone, count = self.cost.round(0), len(batch.accept)
        price, start = (
            batch.inputs[0].new_full((count,), x / alone) for x in (self.cost.per_token, self.cost.t_draft_start)
        )
        logits, rewards = self._round(batch, price, start)
        goes_on = (logits[:, :-1] > 0).int().cumprod(1)
        reward = rewards.gather(1, goes_on.sum(1, keepdim=True)).sum()
        self.rewards.append(torch.stack([reward, rewards.new_tensor(count)]))

    def metrics(self) -> dict[str, float]:
        reward, count = self.total(torch.stack(self.rewards).double().sum(0)).tolist()
        self.rewards.clear()
        return {"greedy_reward": reward / count}

    def _round(self, batch: Batch, price: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (M, 10) of going on after each token, and rewards (M, 10) of stopping there, at costs (M,) each."""
        (drafted,), kept = batch.inputs, batch.accept
        logits: Tensor = self.head(observations(drafted.float(), price, start)).float()
        self.require_finite("predictions are", logits)
        return logits, round_rewards(kept, price, start)


def round_rewards(kept: Tensor, price: Tensor, start: Tensor) -> Tensor:
    """(M, 10) tokens of a round that drafts 1, 2, … tokens, by its time in rounds without a draft.

    Where no further token can be drafted, the reward is that of those that can.
    """
    drafted = (kept != BEYOND).cumsum(1)
    return (1.0 + kept.clamp(min=0).cumsum(1)) / (1.0 + start[:, None] + price[:, None] * drafted)


def length_logits(logits: Tensor) -> Tensor:
    """(M, 10) log probabilities of stopping after 1, 2, … tokens, for ``logits`` (M, 10) of going on after each."""
    goes_on = F.logsigmoid(logits[:, :-1]).cumsum(1)
    stops = F.logsigmoid(-logits[:, :-1])
    first = torch.zeros_like(logits[:, :1])
    return torch.cat([first, goes_on], 1) + torch.cat([stops, first], 1)
