"""A router that goes on learning while it serves: LinUCB (Li et al. 2010) that begins as the offline policy.

The context z is the policy's own answer π(·|x), (A,): queries that the policy takes for alike share what is learnt, so
a few dozen generations are enough to move. Reward: tokens per second over the running mean, so that a faster machine
is no news. Per arm a ridge regression r ≈ θ_a·z, its prior centred at ``1 + trust·(π_a - mean π)``: before anything is
seen the best arm is the policy's.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from ..errors import InputError
from ..sampling import SamplingParams
from .base import Router, certain
from .policy import PolicyRouter


class OnlineRouter(Router):
    """LinUCB over the arms of a trained policy.

    Args:
        policy: where it begins.
        explore: width of the confidence bound; 0 always takes the arm that looks best.
        trust: how much better, in shares of the mean rate, an arm is taken to be that the policy is sure of.
        weight: generations that the prior counts as.

    Attributes:
        counts: generations by arm.
    """

    def __init__(self, policy: PolicyRouter, *, explore: float = 0.1, trust: float = 0.2, weight: float = 2.0) -> None:
        for name, value, least in (("explore", explore, 0.0), ("trust", trust, 0.0), ("weight", weight, 1e-9)):
            if not (value >= least and math.isfinite(value)):
                raise InputError(f"{name}={value}: must be a finite number, {'positive' if least else '0 or more'}")
        self.policy, self.explore, self.arms = policy, explore, policy.arms
        arms = self.arms
        self.counts = [0] * arms
        self.seen, self.mean = 0, 0.0
        # z sums to 1, so θ_a·z = 1 + trust·(z_a - 1/A) with these rows.
        prior = 1 + trust * (np.eye(arms) - 1 / arms)
        self.precision = np.stack([weight * np.eye(arms)] * arms)  # (A, A, A)
        self.moment = weight * prior  # (A, A)

    def check_sampling(self, sampling: SamplingParams) -> None:
        self.policy.check_sampling(sampling)

    def bounds(self, embedding: Tensor) -> list[float]:
        """Upper confidence bound of each arm's reward."""
        z = np.array(self.policy.probabilities(embedding))
        found = []
        for precision, moment in zip(self.precision, self.moment, strict=True):
            spread = np.linalg.solve(precision, z)
            found.append(float(spread @ moment + self.explore * math.sqrt(spread @ z)))
        return found

    def weigh(self, embedding: Tensor) -> list[float]:
        bounds = self.bounds(embedding)
        return certain(bounds.index(max(bounds)), self.arms)

    def learn(self, embedding: Tensor, arm: int, rate: float) -> None:
        self.seen += 1
        self.mean += (rate - self.mean) / self.seen
        z = np.array(self.policy.probabilities(embedding))
        self.counts[arm] += 1
        self.precision[arm] += np.outer(z, z)
        self.moment[arm] += rate / self.mean * z
