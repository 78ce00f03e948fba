"""The router's training step: REINFORCE on sampled actions, E[∇ log π(a|x)·r] (Huang et al. 2024, §2.4).

Every arm's reward is known offline, so the gradient can also be computed exactly: ∇ Σ_a π(a|x)·r(x, a).
Shapes: logits and rewards (B, A), uniforms (B,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..controllers.arms import Arm
from ..controllers.router import RouterPolicy
from ..controllers.router.policy import RouterConfig
from ..infer.random_source import draw
from .controller_module import ExportedModule
from .options import RouterTrainingOptions
from .router_data import Batch, RouterDataModule
from .router_metrics import choice_table, router_metrics

Total = Callable[[Tensor], Tensor]


def same(value: Tensor) -> Tensor:
    """The sum over a single process."""
    return value


def policy_loss(
    logits: Tensor, batch: Batch, gradient: str, baseline: str, entropy: float, total: Total = same
) -> Tensor:
    """Sum over queries of the policy loss, minus ``entropy`` times the policy's entropy; a scalar.

    Args:
        total: sums a tensor over the processes that the batch is split over.
    """
    log_policy = logits.log_softmax(-1)
    policy = log_policy.exp()
    if gradient == "exact":
        taken, got, log_taken = policy, batch.rewards, policy  # ∇π = π·∇log π
    else:
        action = draw(policy.detach(), batch.uniforms).unsqueeze(-1)  # (B, 1)
        got, log_taken = batch.rewards.gather(-1, action), log_policy.gather(-1, action)
        taken = torch.ones_like(got)
    advantage = got - baseline_of(batch, (taken * got).sum(-1).detach(), baseline, total).unsqueeze(-1)
    gain = (log_taken * advantage.detach()).sum()
    return -gain - entropy * -(policy * log_policy).sum()


def baseline_of(batch: Batch, got: Tensor, baseline: str, total: Total = same) -> Tensor:
    """The baseline (B,) of each query's reward; it does not depend on the query's own action, so it adds no bias.

    Args:
        got: (B,) rewards of the sampled actions; the baseline ``batch`` is the mean over the other queries.
        total: as in :func:`policy_loss`.
    """
    if baseline == "query":
        return batch.rewards.mean(-1)
    if baseline == "batch":
        summed, count = total(torch.stack([got.sum(), got.new_tensor(len(got))])).unbind()
        if float(count) > 1:
            return (summed - got) / (count - 1)
    return torch.zeros_like(got)


def new_policy(hidden_size: int, arms: int, width: int, seed: int) -> RouterPolicy:
    """A policy with random weights that depend only on ``seed``; the global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RouterPolicy(hidden_size, arms, width)


class RouterModule(ExportedModule):
    """The policy in training. ``choices`` holds the choice table of the last validation."""

    options = RouterTrainingOptions
    criterion = "regret"

    def __init__(
        self, head: RouterPolicy, settings: RouterTrainingOptions, data: RouterDataModule, arms: list[str]
    ) -> None:
        super().__init__(settings)
        self.head = head
        self.settings, self.arms = settings, arms
        self.held_out, self.scale = data.validation, data.scale
        self.choices: dict[str, Any] = {}
        self._seen: list[Tensor] = []

    @classmethod
    def exported(
        cls, settings: RouterTrainingOptions, dataset: dict[str, Any], best: dict[str, Any], common: dict[str, Any]
    ) -> tuple[RouterPolicy, RouterConfig]:
        config = RouterConfig(
            **common, hidden_size=dataset["hidden_size"], width=settings.width,
            arms=tuple(Arm(**arm) for arm in dataset["arms"]),
            reward=settings.reward, alpha=settings.alpha, cost=settings.cost,
        )  # fmt: skip
        policy = config.module()
        policy.load_state_dict(best["head"])
        policy.absorb(torch.tensor(best["scale"]))
        return policy, config

    @property
    def policy(self) -> RouterPolicy:
        assert isinstance(self.head, RouterPolicy)
        return self.head

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        settings, logits = self.settings, self.head(batch.x).float()
        self.require_finite("predictions are", logits)
        options = settings.gradient, settings.baseline, settings.entropy, self.total
        loss: Tensor = self.share(policy_loss(logits, batch, *options), batch.x.new_tensor(len(batch.x)))
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.x))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits = self.head(batch.x).float()
        self.require_finite("predictions are", logits)
        self._seen.append(logits.cpu().double().softmax(-1))

    def on_validation_epoch_end(self) -> None:
        probabilities = torch.cat(self._seen).numpy()
        self._seen.clear()
        rewards, domains = self.held_out.rewards.double().numpy(), self.held_out.domains
        self.validation = router_metrics(probabilities, rewards, domains)
        chosen = np.argmax(probabilities, 1).tolist()
        self.choices = choice_table(chosen, rewards, domains, self.arms)
        self.log("val_regret", self.validation["regret"], prog_bar=True, logger=False)

    def findings(self) -> dict[str, Any]:
        return {"choices": self.choices, "scale": self.scale.tolist()}

    def score(self) -> float:
        return -self.validation["regret"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        settings = self.settings  # betas and epsilon: Table 9
        return torch.optim.AdamW(
            self.head.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, betas=(0.9, 0.99), eps=1e-8
        )
