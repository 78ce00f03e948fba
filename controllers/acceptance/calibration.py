"""Calibration of a head's logit to a probability, stored in ``config.json`` under ``calibration``.

A head trained with loss weights (w_acc, w_rej) predicts â = a / (a + w·(1-a)) with w = w_rej / w_acc, so that
``odds(a) = w·odds(â)``. Undoing the weights and Platt scaling both have the form ``sigmoid(scale·logit + shift)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...common.errors import InputError

Array = NDArray[np.float64]


def sigmoid(logit: float) -> float:
    """Return 1 / (1 + exp(-logit))."""
    return 1.0 / (1.0 + math.exp(-max(logit, -700.0)))  # exp(700) does not overflow


def newton_weights(p: Tensor, labels: Tensor) -> Tensor:
    """Return the weights (N,) of the rows in a logistic regression's Hessian.

    A weight is p·(1 - p), but at least a quarter of the residual. For a wrong p near 0 or 1, a step with the exact
    Hessian would overshoot, and steps could diverge.

    Args:
        p: (N,) predictions.
        labels: (N,) labels.
    """
    return torch.maximum(p * (1 - p), (labels - p).abs() / 4)


def fit_logistic(x: Array, p: Array) -> tuple[Array, float]:
    """Return coefficients (n,) and intercept of the logistic regression of probabilities ``p`` (N,) on ``x`` (N, n).

    Every row counts as two rows: an accepted one with weight p and a rejected one with weight 1 - p.
    """
    from sklearn.linear_model import LogisticRegression  # imported here, because decoding does not need it

    labels = np.repeat([1, 0], len(p))
    fit = LogisticRegression(C=np.inf, max_iter=1000, tol=1e-8)
    fit.fit(np.concatenate([x, x]), labels, sample_weight=np.concatenate([p, 1 - p]))
    return fit.coef_[0], float(fit.intercept_[0])


@dataclass(frozen=True)
class Calibration:
    """The map ``sigmoid(scale·logit + shift)`` from logits to probabilities.

    Attributes:
        scale, shift: the numbers of the formula. The scale is positive, so that the order of logits is preserved.
        method: the method that determined them.
        dataset_fingerprint: SHA-256 of the data that they were fitted to; None if they were not fitted.
        draft_exponent: the power of the draft's probabilities with which it agrees most often with the target under
            the verification rule ``invariant``.

    Raises:
        InputError: a number is not finite, or the scale is not positive.
    """

    scale: float
    shift: float
    method: Literal["none", "weights", "platt"]
    dataset_fingerprint: str | None = None
    draft_exponent: float = 1.0

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale) and math.isfinite(self.shift)):
            raise InputError(
                f"calibration: scale={self.scale:.3g}, shift={self.shift:.3g}: must be finite, and the scale positive, "
                "or accepted tokens rank below rejected ones; train the head on more data"
            )

    def __call__(self, logit: float) -> float:
        """Return the probability for ``logit``."""
        return sigmoid(self.scale * logit + self.shift)


UNCALIBRATED = Calibration(1.0, 0.0, "none")


def undo_weights(w_acc: float, w_rej: float) -> Calibration:
    """Return the calibration that undoes the loss weights: odds(a) = (w_rej / w_acc)·odds(â)."""
    return Calibration(1.0, math.log(w_rej / w_acc), "weights")
