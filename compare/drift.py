"""A test for drift of acceptance between two datasets, for all groups together, with at most 5 % false alarms.

The acceptance of a group is a ratio of sums over prompts, Σ accepted / Σ drafted; tokens of one prompt are not
independent, prompts are. Each group's statistic is the difference over its standard error. Its p-value is the share of
random re-assignments of the prompts to the two datasets in which the statistic is at least as large. A prompt of both
datasets has two sums, which a re-assignment swaps or keeps. The adjusted p-value is the share of re-assignments in
which the least p-value of all groups is at least as small (Westfall and Young 1993, single-step minP). Half of the 5 %
is for all tokens together and half for the groups. If nothing drifted, the probability that any group is named is at
most 5 %, for any number of groups and any dependence between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.record import Record
from .interval import ENOUGH

Array = NDArray[np.float64]
ASSIGNMENTS, TOGETHER = 2000, 100
ALARM = 0.05
NORMAL = 1.96
LARGEST = 1e6  # of a statistic


@dataclass(frozen=True)
class Drift(Record):
    """Acceptance of one group in two datasets.

    Attributes:
        acceptance, other: mean acceptance in the first and in the second dataset.
        tokens, other_tokens: drafted tokens of the group in each.
        low, high: 95 % interval of the difference ``other - acceptance``.
        p: p-value, adjusted for all groups.
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
        """``other - acceptance``."""
        return self.other - self.acceptance

    @property
    def is_significant(self) -> bool:
        """Return true if the group drifted, at a level of ``ALARM``."""
        return self.p <= ALARM

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ``difference``, and ``found``, which is true if the difference is significant."""
        return super().to_dict() | {"difference": self.difference, "found": self.is_significant}


class Sums(NamedTuple):
    """Sums over the drafted tokens of C prompts, by prompt and group.

    Attributes:
        accepted: (C, G) sums of the acceptance.
        drafted: (C, G) numbers of tokens.
    """

    accepted: Array
    drafted: Array


def sums_of(
    prompts: NDArray[np.str_], accept: Array, groups: Sequence[NDArray[np.bool_] | bool]
) -> tuple[list[str], Sums]:
    """Return the C distinct prompts of M tokens, and the sums over the tokens of each prompt.

    Args:
        prompts: prompt of each token (M,).
        accept: acceptance of each token (M,).
        groups: membership of each token in each group (M,).
    """
    names, prompt_index = np.unique(prompts, return_inverse=True)
    accepted, drafted = (
        np.stack([np.bincount(prompt_index, values * mask, len(names)).astype(float) for mask in groups], 1)
        for values in (accept, np.ones(len(accept)))
    )
    return names.tolist(), Sums(accepted, drafted)


def mean_interval(sums: Sums) -> tuple[Array, Array, Array]:
    """Return the acceptance (G,) of each group and its 95 % interval, by the linearised variance of a ratio of sums."""
    mean, variance = _means(np.ones((1, len(sums.drafted))), sums)
    half_width = NORMAL * np.sqrt(variance[0])
    return mean[0], np.clip(mean[0] - half_width, 0, 1), np.clip(mean[0] + half_width, 0, 1)


def drifts(first: tuple[list[str], Sums], second: tuple[list[str], Sums], seed: int = 0) -> list[Drift]:
    """Return the drift of each of G groups; its p is 1 if the group has too few prompts in a dataset.

    Args:
        first, second: the prompts and sums of each dataset, from :func:`sums_of`. Both have the same groups, of which
            the first has all tokens.
        seed: seed of the random re-assignments.
    """
    names = [*first[0], *second[0]]
    sums = Sums(*(np.concatenate(parts) for parts in zip(first[1], second[1], strict=True)))
    side = np.repeat([False, True], [len(first[0]), len(second[0])])
    is_small = np.minimum((sums.drafted[~side] > 0).sum(0), (sums.drafted[side] > 0).sum(0)) < ENOUGH
    tested = Sums(*(part[:, ~is_small] for part in sums))
    observed = np.abs(_statistic(side[None], tested)[0])
    p = np.ones(len(is_small))
    if observed.size:
        random = np.random.default_rng(seed)
        drawn = [
            np.abs(_statistic(_assignments(names, side, TOGETHER, random), tested))
            for _ in range(ASSIGNMENTS // TOGETHER)
        ]
        p[~is_small] = adjusted(np.concatenate([observed[None], *drawn]))
    (mean, variance), (other, other_variance) = (_means(s[None].astype(float), sums) for s in (~side, side))
    half_width = NORMAL * np.sqrt(variance[0] + other_variance[0])
    difference = other[0] - mean[0]
    tokens, other_tokens = (sums.drafted[s].sum(0).astype(int) for s in (~side, side))
    table = zip(
        mean[0], other[0], tokens, other_tokens, difference - half_width, difference + half_width, p, strict=True
    )  # fmt: skip
    return [Drift(*(value.item() for value in row)) for row in table]


def adjusted(statistics: Array) -> Array:
    """Return adjusted p-values (G,) of the first row of ``statistics`` (P, G); the other rows are re-assignments.

    The first group is a family, and all other groups are a second family.
    """
    ordered = np.sort(np.round(statistics, 9), 0)
    columns = zip(ordered.T, np.round(statistics, 9).T, strict=True)
    p = 1 - np.stack([np.searchsorted(column, values) for column, values in columns], 1) / len(statistics)  # (P, G)
    least = p[:, 1:].min(1, initial=1.0)
    among = (least[:, None] <= p[0, 1:]).mean(0)
    return np.asarray(np.minimum(1.0, 2 * np.concatenate([p[0, :1], among])))


def _assignments(
    names: Sequence[str], side: NDArray[np.bool_], count: int, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Return random datasets (count, C) of the prompts: prompts of both are swapped or not, and others are shuffled."""
    order = np.argsort(np.array(names), kind="stable")
    ordered = np.array(names)[order]
    first_of_pair = np.flatnonzero(ordered[1:] == ordered[:-1])
    pairs = np.stack([order[first_of_pair], order[first_of_pair + 1]], 1)
    unpaired = np.setdiff1d(np.arange(len(names)), pairs)
    assigned = np.tile(side, (count, 1))
    assigned[:, unpaired] = random.permuted(assigned[:, unpaired], axis=1)
    swapped = random.random((count, len(pairs))) < 0.5
    assigned[:, pairs[:, 0]] ^= swapped
    assigned[:, pairs[:, 1]] ^= swapped
    return assigned


def _statistic(assigned: NDArray[np.bool_], sums: Sums) -> Array:
    """Return the difference over its standard error (P, G) for each assignment (P, C); 0 if it is not defined."""
    first, first_variance = _means((~assigned).astype(float), sums)
    second, second_variance = _means(assigned.astype(float), sums)
    with np.errstate(invalid="ignore", divide="ignore"):
        statistic = (second - first) / np.sqrt(first_variance + second_variance)
    return np.nan_to_num(statistic, nan=0.0, posinf=LARGEST, neginf=-LARGEST)


def _means(weights: Array, sums: Sums) -> tuple[Array, Array]:
    """Return acceptance (P, G) of the prompts in ``weights`` (P, C), and its variance; NaN without tokens."""
    s, n = sums
    drafted = weights @ n
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = weights @ s / drafted
        squares = weights @ s**2 - 2 * mean * (weights @ (s * n)) + mean**2 * (weights @ n**2)
        count = weights @ (n > 0)
        variance = np.maximum(squares, 0) / drafted**2 * count / np.maximum(count - 1, 1)
    return mean, variance
