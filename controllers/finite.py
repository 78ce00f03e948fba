"""Whether a number that a user gave is finite."""

from __future__ import annotations

import math
from typing import SupportsFloat


def is_finite(value: SupportsFloat) -> bool:
    """False also for a whole number beyond the largest float, with which ``math.isfinite`` fails."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
