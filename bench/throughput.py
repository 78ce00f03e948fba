"""The cost model of SpecDec++ (Huang et al. 2024, §2): what a forward costs here, and what that makes of two rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression

from ..infer.generation import Stats


@dataclass(frozen=True)
class Cost:
    """Seconds a forward, fitted to whole generations (eq. 2.1: T = t_draft·N_draft + t_target·N_target).

    Attributes:
        t_draft: one draft forward, and what verifying its token adds to the target's forward: with chain drafts each
            drafted token is verified once, so the two cannot be told apart, and need not be.
        t_target: one target forward.
        r_squared: share of the variance of T over the generations that the fit explains.
    """

    t_draft: float
    t_target: float
    r_squared: float

    def throughput(self, stats: Stats) -> float:
        """Tokens per second by eq. 2.3, from the discard and verification rates alone."""
        return float(self.throughput_of(stats.n_generated, stats.n_discarded, stats.n_target_forwards))

    def throughput_of(self, generated: Any, discarded: Any, verified: Any) -> Any:
        """The same from the three counters it needs, numbers or arrays of them."""
        t_draft, t_target = self.t_draft, self.t_target
        return generated / (t_draft * (generated + discarded) + (t_target - t_draft) * verified)


def fit_cost(runs: list[Stats]) -> Cost:
    """Least squares over generations, one :class:`Stats` each. The prefill and the token taken from it are left out."""
    # (n, 2) and (n,)
    forwards = np.array([[run.n_draft_forwards, run.n_target_forwards - 1] for run in runs], dtype=float)
    seconds = np.array([run.seconds for run in runs])
    fit = LinearRegression(fit_intercept=False).fit(forwards, seconds)
    return Cost(float(fit.coef_[0]), float(fit.coef_[1]), float(fit.score(forwards, seconds)))
