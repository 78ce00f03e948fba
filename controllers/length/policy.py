"""Stops drafts by a trained policy."""

from __future__ import annotations

import numpy as np

from ..acceptance.length_head import HORIZON
from ..acceptance.step import Step
from ..acceptance.stop_policy import StopPolicy, observation
from .cost_model import CostModel
from .priced import TrainedLength


class StopRule:
    """The policy's more probable action, in NumPy: for one token that is faster than tensors."""

    def __init__(self, policy: StopPolicy) -> None:
        self.inner = policy.inner.weight.detach().cpu().numpy()
        self.bias = policy.inner.bias.detach().cpu().numpy()
        self.out, self.level = policy.out.weight.detach().cpu().numpy()[0], float(policy.out.bias)

    def goes_on(self, observed: list[float]) -> bool:
        """Whether to draft another token."""
        units = self.inner @ np.array(observed, np.float32) + self.bias
        return float(np.maximum(units, 0.0) @ self.out) + self.level > 0.0


class PolicyLength(TrainedLength):
    """Drafts at least one token, and another one while that is a stop policy's more probable action.

    Args:
        mean, cost: as for :class:`.TrainedLength`.
    """

    def __init__(self, policy: StopPolicy, mean: float, cost: CostModel) -> None:
        self.rule = StopRule(policy)
        super().__init__(mean, cost)

    def start_round(self) -> bool:
        self.begun, self.survival = True, 1.0
        return self._begin_draft(pays=not self.cost.never_pays, may_pay=False)

    def observe(self, step: Step) -> bool:
        signals = step.host_signals(entropy=False)
        confidence, top, _ = step.signals() if signals is None else signals
        self.survival *= confidence
        if step.index >= HORIZON:
            return False
        alone = self.cost.round(0)
        prices = self.cost.per_token / alone, self.cost.t_draft_start / alone
        return self.rule.goes_on(observation(self.survival, confidence, top, step.index, *prices))
