"""Did acceptance drift between two datasets, and where? One test for all groups, which keeps false alarms at 5 %.

The acceptance of a group is a ratio of sums over prompts, Σ accepted / Σ drafted; tokens of one prompt are not
independent, prompts are. By the linearised variance of that ratio (a sandwich estimator with prompts as clusters) the
difference of two datasets over its standard error is tested as Student's t; a prompt of both counts with the difference
of its two parts. p-values are adjusted for all groups together: half of the 5 % is for all tokens, and half for the
groups (Holm 1979). Where nothing drifted, the probability of naming anything is at most 5 %, however many groups there
are and however they depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from .interval import ENOUGH

Array = NDArray[np.float64]
ALARM = 0.05
NORMAL = 1.96


class Drift(NamedTuple):
    """Acceptance of one group in two datasets.

    Attributes:
        tokens, other_tokens: drafted tokens of the group in each.
        low, high: 95 % interval of the difference ``other - acceptance``.
        p: adjusted for all groups.
    """

    acceptance: float
    other: float
    tokens: int
    other_tokens: int
    low: float
    high: float
    p: float

    @property
    def difference(self) -> float:
        return self.other - self.acceptance

    @property
    def found(self) -> bool:
        return self.p <= ALARM


class Sums(NamedTuple):
    """Sums over the tokens of each of C prompts in G groups, (C, G) each: accepted and drafted tokens."""

    accepted: Array
    drafted: Array


def sums_of(
    prompts: NDArray[np.str_], accept: Array, groups: Sequence[NDArray[np.bool_] | bool]
) -> tuple[list[str], Sums]:
    """The different prompts of tokens, and the sums over their tokens.

    Args:
        prompts: (M,) of each token; ``accept`` (M,) its acceptance; ``groups`` (M,) whether it is in each.
    """
    names, owner = np.unique(prompts, return_inverse=True)
    accepted, drafted = (
        np.stack([np.bincount(owner, values * mask, len(names)).astype(float) for mask in groups], 1)
        for values in (accept, np.ones(len(accept)))
    )
    return names.tolist(), Sums(accepted, drafted)


def mean_interval(sums: Sums) -> tuple[Array, Array, Array]:
    """(G,) acceptance of each group, and its 95 % interval."""
    mean, influence = _influence(sums)
    spread = NORMAL * np.sqrt((influence**2).sum(0))
    return mean, np.clip(mean - spread, 0, 1), np.clip(mean + spread, 0, 1)


def drifts(first: tuple[list[str], Sums], second: tuple[list[str], Sums]) -> list[Drift]:
    """The drift of each group, whose columns are the same in both; p is 1 where a dataset has too few prompts of it.

    The first group has all tokens.
    """
    (names, one), (others, two) = first, second
    (mean, own), (other, own_of_other) = _influence(one), _influence(two)
    prompts = np.unique([*names, *others])
    moved, known = np.zeros((len(prompts), len(mean))), np.zeros((len(prompts), len(mean)), bool)
    for sign, some, influence, sums in ((-1, names, own, one), (1, others, own_of_other, two)):
        moved[np.searchsorted(prompts, some)] += sign * influence
        known[np.searchsorted(prompts, some)] |= sums.drafted > 0
    error = np.sqrt((moved**2).sum(0))
    fewest = np.minimum(*((sums.drafted > 0).sum(0) for sums in (one, two)))
    with np.errstate(invalid="ignore", divide="ignore"):
        p = 2 * t.sf(np.abs(other - mean) / error, known.sum(0) - 2)
    p[np.isnan(p) | (fewest < ENOUGH)] = 1.0
    tokens = (sums.drafted.sum(0).astype(int) for sums in (one, two))
    low, high = (other - mean + sign * NORMAL * error for sign in (-1, 1))
    table = zip(mean, other, *tokens, low, high, adjusted(p), strict=True)
    return [Drift(*(value.item() for value in row)) for row in table]


def adjusted(p: Array) -> Array:
    """(G,) p-values, of which the first one is a family of its own, and the others are one of Holm's."""
    order = 1 + np.argsort(p[1:])
    found = 2 * p
    found[order] = np.maximum.accumulate(found[order] * np.arange(len(order), 0, -1))
    return np.minimum(found, 1.0)


def _influence(sums: Sums) -> tuple[Array, Array]:
    """(G,) acceptance, and (C, G) what each prompt's deviation from it adds to its error; NaN where none has tokens."""
    accepted, drafted = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = accepted.sum(0) / drafted.sum(0)
        count = (drafted > 0).sum(0)
        influence = (accepted - mean * drafted) / drafted.sum(0) * np.sqrt(count / np.maximum(count - 1, 1))
    return mean, influence
