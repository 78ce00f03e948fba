"""Baselines of a policy on the same features: scikit-learn models of the best arm, and the oracle.

Shapes: embeddings (N, d), rewards (N, A).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NEIGHBOURS = 15


def baseline_choices(x: Array, rewards: Array, new: Array, new_rewards: Array) -> dict[str, NDArray[np.int64]]:
    """The arm that each baseline, fitted to ``x`` and ``rewards``, chooses for each of the ``new`` prompts.

    * best_single: the arm of the highest mean reward.
    * logistic: logistic regression of the best arm on standardised embeddings.
    * neighbours: the arm of the highest mean reward among the nearest prompts.
    * oracle: the best arm of the new prompt.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    best = rewards.argmax(1)
    single = int(rewards.mean(0).argmax())
    found: dict[str, Any] = {"best_single": np.full(len(new), single)}
    if len(np.unique(best)) == 1:  # a single class cannot be fitted
        found["logistic"] = np.full(len(new), best[0])
    else:
        found["logistic"] = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, best).predict(new)
    nearest = make_pipeline(StandardScaler(), KNeighborsRegressor(min(NEIGHBOURS, len(x)))).fit(x, rewards)
    found["neighbours"] = nearest.predict(new).argmax(1)
    found["oracle"] = new_rewards.argmax(1)
    return {name: np.asarray(choice, dtype=np.int64) for name, choice in found.items()}
