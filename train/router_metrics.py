"""Metrics of a policy's choices. ``rewards`` and ``probabilities`` are (N, A)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TIE = 1e-9


def router_metrics(probabilities: Array, rewards: Array, domains: Sequence[str]) -> dict[str, float]:
    """Metrics of one validation.

    * expected_reward: E_π[r], the mean reward of sampled choices.
    * greedy_reward: mean reward of the most probable arms.
    * regret, regret_sampled: mean reward of the best arms minus greedy_reward, or minus expected_reward.
    * selection_accuracy: share of queries whose greedy choice is as good as their best arm.
    * domain_accuracy: share of queries whose greedy choice is the best arm on average in their domain.
    * entropy: mean entropy of π in nats.
    * best_single: mean reward of the arm that is best over all queries.
    * oracle: mean reward of each query's best arm.
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
    """Counts of choices by domain (rows) and arm, and by the query's best arm (rows) and arm."""
    from sklearn.metrics import confusion_matrix

    names = list(dict.fromkeys(domains))
    by_domain = {name: [0] * len(arms) for name in names}
    for domain, arm in zip(domains, chosen, strict=True):
        by_domain[domain][int(arm)] += 1
    confusion = confusion_matrix(rewards.argmax(1), list(chosen), labels=list(range(len(arms))))
    return {"arms": list(arms), "by_domain": by_domain, "confusion": confusion.tolist()}
