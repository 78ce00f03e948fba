"""Bootstrap confidence intervals (95 %) over prompts, for statistics of sums over prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

RESAMPLES = 2000
ENOUGH = 5  # prompts from which on an interval means something


class Interval(NamedTuple):
    """A statistic and its 95 % interval."""

    value: float
    low: float
    high: float

    def as_dict(self, name: str = "value") -> dict[str, float]:
        """The statistic under ``name``, with ``low`` and ``high`` beside it."""
        return {name: self.value, "low": self.low, "high": self.high}


def interval(statistic: Callable[..., Any], *values: Any, seed: int = 0) -> Interval:
    """``statistic`` of the sums of ``values`` (prompts,), and its 95 % interval over resampled prompts."""
    rows = np.random.default_rng(seed).integers(len(values[0]), size=(RESAMPLES, len(values[0])))
    with np.errstate(invalid="ignore"):  # resamples of texts that have only the token of the prefill are left out
        low, high = np.nanquantile(statistic(*(x[rows].sum(1) for x in values)), [0.025, 0.975])
    return Interval(float(statistic(*(x.sum() for x in values))), float(low), float(high))


def ratio_interval(tokens: Any, amount: Any, other_tokens: Any, other_amount: Any) -> Interval:
    """Ratio of two rates (tokens per second, tokens per forward) over the same prompts, and its interval."""
    return interval(lambda a, b, c, d: (a / b) / (c / d), tokens, amount, other_tokens, other_amount)


def show(
    row: Mapping[str, float] | Interval | None, name: str = "value", digits: int = 2, prompts: int = ENOUGH
) -> str:
    """``1.23 (1.20–1.26)``, of a result of :meth:`Interval.as_dict`; the interval only from ``ENOUGH`` prompts on."""
    if row is None:
        return ""
    found = row.as_dict() if isinstance(row, Interval) else row
    value, low, high = (found.get(key) for key in (name, "low", "high"))
    words = f"{value:.{digits}f}"
    return words if prompts < ENOUGH or low is None or low == high else f"{words} ({low:.{digits}f}–{high:.{digits}f})"
