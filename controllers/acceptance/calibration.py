"""Calibration of a head's logit to a probability, stored in ``config.json`` under ``calibration``.

A head trained with loss weights (w_acc, w_rej) predicts â = a / (a + w·(1-a)) with w = w_rej / w_acc, so that
``odds(a) = w·odds(â)``. Undoing the weights, temperature and Platt scaling are all ``sigmoid(scale·logit + shift)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import InputError

SIGMOIDS = ("none", "weights", "temperature", "platt")


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(logit, -700.0)))  # exp(700) does not overflow


@dataclass(frozen=True)
class Sigmoid:
    """``sigmoid(scale·logit + shift)``. The scale must be positive, so that the order of logits is kept."""

    scale: float = 1.0
    shift: float = 0.0
    method: str = "none"

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale) and math.isfinite(self.shift)):
            raise InputError(
                f"calibration: scale={self.scale}, shift={self.shift}: must be finite, and the scale positive; "
                "with another scale the head ranks tokens in reverse order"
            )

    def __call__(self, logit: float) -> float:
        return sigmoid(self.scale * logit + self.shift)

    def as_dict(self) -> dict[str, Any]:
        return {"method": self.method, "scale": self.scale, "shift": self.shift}


@dataclass(frozen=True)
class Isotonic:
    """Increasing, piecewise linear through ``(logits[i], probabilities[i])``, and constant beyond the ends."""

    logits: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        x, y = self.logits, self.probabilities
        rising = all(a < b for a, b in pairwise(x)) and list(y) == sorted(y)
        inside = all(map(math.isfinite, x)) and all(0 <= value <= 1 for value in y)
        if not (x and len(x) == len(y) and rising and inside):
            raise InputError("calibration: logits, and as many probabilities in [0, 1], must increase")

    @cached_property
    def _points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(self.logits), np.array(self.probabilities)

    def __call__(self, logit: float) -> float:
        return float(np.interp(logit, *self._points))

    def as_dict(self) -> dict[str, Any]:
        return {"method": "isotonic", "logits": list(self.logits), "probabilities": list(self.probabilities)}


Calibration = Sigmoid | Isotonic


def undo_weights(w_acc: float, w_rej: float) -> Sigmoid:
    """The calibration that undoes the loss weights: odds(a) = (w_rej / w_acc)·odds(â)."""
    return Sigmoid(1.0, math.log(w_rej / w_acc), "weights")


def parse_calibration(data: Mapping[str, Any]) -> Calibration:
    """The calibration whose ``as_dict`` gave ``data``.

    Raises:
        InputError: the method is unknown, or its numbers are missing or invalid.
    """
    method = data.get("method")
    try:
        if method == "isotonic":
            logits, probabilities = (tuple(map(float, data[name])) for name in ("logits", "probabilities"))
            return Isotonic(logits, probabilities)
        if method in SIGMOIDS:
            return Sigmoid(float(data["scale"]), float(data["shift"]), method)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"calibration={dict(data)!r}: its numbers are missing or no numbers; calibrate again"
        ) from error
    raise InputError(f"calibration: method={method!r}: choose one of {', '.join([*SIGMOIDS, 'isotonic'])}")
