"""How well a policy chooses, against what each arm was worth. ``rewards`` (N, A), ``probabilities`` (N, A)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TIE = 1e-9


def router_metrics(probabilities: Array, rewards: Array, domains: Sequence[str]) -> dict[str, float]:
    """Metrics of one validation.

    * expected_reward: E_π[r], of sampled choices. greedy_reward: of the most likely arm.
    * regret: best arm's reward less the greedy choice's, mean over queries; regret_sampled: less E_π[r].
    * selection_accuracy: the greedy choice is as good as the best arm of this query.
    * domain_accuracy: it is the arm that is best on average in the query's domain.
    * entropy: of π, in nats.
    * best_single: mean reward of the one arm that is best over all queries. oracle: of each query's best.
    """
    chosen = probabilities.argmax(1)
    got, best = rewards[np.arange(len(rewards)), chosen], rewards.max(1)
    expected = (probabilities * rewards).sum(1)
    domain_best = best_arms(rewards, domains)
    entropy = -(probabilities * np.log(np.clip(probabilities, 1e-30, None))).sum(1)
    return {
        "expected_reward": float(expected.mean()),
        "greedy_reward": float(got.mean()),
        "regret": float((best - got).mean()),
        "regret_sampled": float((best - expected).mean()),
        "selection_accuracy": float((got >= best - TIE).mean()),
        "domain_accuracy": float(np.mean([arm == domain_best[d] for arm, d in zip(chosen, domains, strict=True)])),
        "entropy": float(entropy.mean()),
        "best_single": float(rewards.mean(0).max()),
        "oracle": float(best.mean()),
    }


def best_arms(rewards: Array, domains: Sequence[str]) -> dict[str, int]:
    """The arm of the highest mean reward in each domain."""
    where = np.array(domains)
    return {domain: int(rewards[where == domain].mean(0).argmax()) for domain in dict.fromkeys(domains)}


def choice_table(chosen: Sequence[int], rewards: Array, domains: Sequence[str], arms: Sequence[str]) -> dict[str, Any]:
    """Counts of choices: by domain (rows) and arm; and by the query's best arm (rows, scikit-learn's confusion)."""
    from sklearn.metrics import confusion_matrix

    names = list(dict.fromkeys(domains))
    by_domain = {name: [0] * len(arms) for name in names}
    for domain, arm in zip(domains, chosen, strict=True):
        by_domain[domain][int(arm)] += 1
    confusion = confusion_matrix(rewards.argmax(1), list(chosen), labels=list(range(len(arms))))
    return {"arms": list(arms), "by_domain": by_domain, "confusion": confusion.tolist()}
