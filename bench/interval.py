"""Intervals of ratios of sums over prompts, by resampling the prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

RESAMPLES = 2000


def interval(statistic: Callable[..., Any], *values: Any, seed: int = 0) -> tuple[float, float, float]:
    """``statistic`` of the sums of ``values`` (prompts,), and its 95 % interval over resampled prompts."""
    rows = np.random.default_rng(seed).integers(len(values[0]), size=(RESAMPLES, len(values[0])))
    low, high = np.quantile(statistic(*(x[rows].sum(1) for x in values)), [0.025, 0.975])
    return float(statistic(*(x.sum() for x in values))), float(low), float(high)
