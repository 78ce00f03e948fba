"""Bootstrap confidence intervals (95 %) over prompts, for statistics of sums over prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.record import Record

RESAMPLES = 2000
ENOUGH = 5  # minimum number of prompts for an interval


@dataclass(frozen=True)
class Interval(Record):
    """A statistic and its 95 % interval; without one, ``low`` and ``high`` are ``value``."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Mapping[str, float], name: str = "value") -> Interval:
        """Return the interval whose statistic is stored as ``name``, the inverse of :meth:`named`."""
        return cls(values[name], values.get("low", values[name]), values.get("high", values[name]))

    def named(self, name: str) -> dict[str, float]:
        """Return a dictionary with the statistic as ``name``, and ``low`` and ``high``."""
        return {name: self.value, "low": self.low, "high": self.high}


def interval(statistic: Callable[..., Any], *values: Any, seed: int = 0) -> Interval:
    """Return a statistic of sums over prompts, with its 95 % bootstrap interval.

    Args:
        statistic: takes one sum for each of ``values``. It is also called with arrays, of the sums of all resamples.
        values: arrays (n,) with a number for each of n prompts.
        seed: seed of the resampling.
    """
    rows = np.random.default_rng(seed).integers(len(values[0]), size=(RESAMPLES, len(values[0])))
    with np.errstate(invalid="ignore"):  # resamples of texts with only the token of the prefill are left out
        low, high = np.nanquantile(statistic(*(x[rows].sum(1) for x in values)), [0.025, 0.975])
    return Interval(float(statistic(*(x.sum() for x in values))), float(low), float(high))


def ratio_interval(tokens: Any, amount: Any, other_tokens: Any, other_amount: Any, *, paired: bool = True) -> Interval:
    """Return the ratio of two rates, such as tokens per second, over the same prompts, with its 95 % interval.

    Args:
        tokens, amount: (n,) numerator and denominator of the first rate for each of n prompts.
        other_tokens, other_amount: (n,) those of the second rate.
        paired: whether a resample has the same prompts for both rates. Otherwise the interval is that of rates which
            were measured on different prompts.
    """
    if paired:
        return interval(lambda a, b, c, d: (a / b) / (c / d), tokens, amount, other_tokens, other_amount)
    value = float((tokens.sum() / amount.sum()) / (other_tokens.sum() / other_amount.sum()))
    generator = np.random.default_rng(0)
    rows, other_rows = generator.integers(len(tokens), size=(2, RESAMPLES, len(tokens)))
    ratios = (
        tokens[rows].sum(1) / amount[rows].sum(1) / (other_tokens[other_rows].sum(1) / other_amount[other_rows].sum(1))
    )
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def show(estimate: Interval | None, digits: int = 2, prompts: int = ENOUGH) -> str:
    """Return a statistic as text, such as ``1.23 (1.20–1.26)``; empty for None.

    Args:
        estimate: the statistic, or None.
        digits: number of decimals.
        prompts: number of prompts. The interval is left out for fewer than ``ENOUGH`` prompts, and if it has no width.
    """
    if estimate is None:
        return ""
    value, low, high = (f"{number:.{digits}f}" for number in (estimate.value, estimate.low, estimate.high))
    return value if prompts < ENOUGH or estimate.low == estimate.high else f"{value} ({low}–{high})"
