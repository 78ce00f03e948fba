"""Acceptance of drafted tokens and its error; did it drift between two datasets, and where?

The acceptance of a group is a ratio of sums over prompts, Σ accepted / Σ drafted; tokens of one prompt are not
independent, prompts are. The variance of that ratio is linearised (a sandwich estimator with prompts as clusters).
The difference of two datasets over its standard error is tested as Student's t; a prompt of both counts with the
difference of its two parts. p-values are adjusted for all groups together: half of the 5 % is for all tokens, and half
for the groups (Holm 1979). Where nothing drifted, the probability of naming anything is at most 5 %, however many
groups there are and however they depend on each other. Shapes: M tokens, C prompts, G groups.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from .interval import ENOUGH

Array = NDArray[np.float64]
Labels = NDArray[np.str_]
ALARM = 0.05
NORMAL = 1.96


class Acceptance(NamedTuple):
    """Acceptance of a group.

    Attributes:
        prompts: (C,) that have tokens of it, and ``errors`` (C,) what each one's deviation adds to the error.
    """

    mean: float
    tokens: int
    prompts: Labels
    errors: Array

    @classmethod
    def of(cls, prompts: Labels, accept: Array) -> Acceptance:
        """That of tokens with acceptances ``accept`` (M,) in answers to ``prompts`` (M,)."""
        names, owner = np.unique(prompts, return_inverse=True)
        accepted, drafted = np.bincount(owner, accept), np.bincount(owner)
        mean, count = accepted.sum() / len(accept), len(names)
        errors = (accepted - mean * drafted) / len(accept) * sqrt(count / max(count - 1, 1))
        return cls(float(mean), len(accept), names, errors)

    def as_dict(self) -> dict[str, Any]:
        """With its 95 % interval, where there are enough prompts."""
        spread, prompts = NORMAL * sqrt((self.errors**2).sum()), len(self.prompts)
        bounds = {"low": max(self.mean - spread, 0.0), "high": min(self.mean + spread, 1.0)}
        counts = {"tokens": self.tokens, "prompts": prompts}
        return {"acceptance": self.mean, **(bounds if prompts >= ENOUGH else {}), **counts}


def drift(first: Acceptance, second: Acceptance) -> dict[str, Any]:
    """How the acceptance of a group moved, with a 95 % interval; ``p`` is 1 where a dataset has too few prompts."""
    prompts = np.union1d(first.prompts, second.prompts)
    moved = np.zeros(len(prompts))
    moved[np.searchsorted(prompts, first.prompts)] -= first.errors
    moved[np.searchsorted(prompts, second.prompts)] += second.errors
    difference, error = second.mean - first.mean, sqrt((moved**2).sum())
    few = min(len(first.prompts), len(second.prompts)) < ENOUGH
    statistic = abs(difference) / error if error else inf
    return {
        "acceptance": first.mean, "other": second.mean, "tokens": first.tokens, "other_tokens": second.tokens,
        "low": difference - NORMAL * error, "high": difference + NORMAL * error, "difference": difference,
        "p": 1.0 if few or not difference else float(2 * t.sf(statistic, len(prompts) - 2)),
    }  # fmt: skip


def adjusted(p: Array) -> Array:
    """(G,) p-values, of which the first one is a family of its own, and the others are one of Holm's."""
    order = 1 + np.argsort(p[1:])
    found = 2 * p
    found[order] = np.maximum.accumulate(found[order] * np.arange(len(order), 0, -1))
    return np.minimum(found, 1.0)
