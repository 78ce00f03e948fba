"""From a head's logit to the chance it stands for; what ``config.json`` keeps under ``calibration``.

A head trained with loss weights (w_acc, w_rej) predicts a / (a + w·(1-a)) with w = w_rej / w_acc; the odds it means are
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

from ..errors import InputError

SIGMOIDS = ("none", "weights", "temperature", "platt")


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(logit, -700.0)))  # exp(700) still is a number


@dataclass(frozen=True)
class Sigmoid:
    """``sigmoid(scale·logit + shift)``. A scale that is not positive would turn the head's order round."""

    scale: float = 1.0
    shift: float = 0.0
    method: str = "none"

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale) and math.isfinite(self.shift)):
            raise InputError(
                f"calibration: scale={self.scale}, shift={self.shift}: must be finite, and the scale positive; "
                "a head that needs another ranks tokens the wrong way round"
            )

    def __call__(self, logit: float) -> float:
        return sigmoid(self.scale * logit + self.shift)

    def as_dict(self) -> dict[str, Any]:
        return {"method": self.method, "scale": self.scale, "shift": self.shift}


@dataclass(frozen=True)
class Isotonic:
    """A rising curve through ``(logits[i], probabilities[i])``, straight between two and flat beyond the ends."""

    logits: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        x, y = self.logits, self.probabilities
        rising = all(a < b for a, b in pairwise(x)) and list(y) == sorted(y)
        inside = all(map(math.isfinite, x)) and all(0 <= value <= 1 for value in y)
        if not (x and len(x) == len(y) and rising and inside):
            raise InputError("calibration: logits must rise, and so must their probabilities in [0, 1], one for each")

    @cached_property
    def _points(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(self.logits), np.array(self.probabilities)

    def __call__(self, logit: float) -> float:
        return float(np.interp(logit, *self._points))

    def as_dict(self) -> dict[str, Any]:
        return {"method": "isotonic", "logits": list(self.logits), "probabilities": list(self.probabilities)}


Calibration = Sigmoid | Isotonic


def undo_weights(w_acc: float, w_rej: float) -> Sigmoid:
    """odds(a) = (w_rej / w_acc)·odds(â)."""
    return Sigmoid(1.0, math.log(w_rej / w_acc), "weights")


def parse_calibration(data: Mapping[str, Any]) -> Calibration:
    """Read what ``as_dict`` of a calibration wrote.

    Raises:
        InputError: the method is not known, or its numbers are missing or make no sense.
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
