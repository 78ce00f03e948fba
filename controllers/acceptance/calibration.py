"""Calibration of a head's logit to a probability, stored in ``config.json`` under ``calibration``.

A head trained with loss weights (w_acc, w_rej) predicts â = a / (a + w·(1-a)) with w = w_rej / w_acc, so that
``odds(a) = w·odds(â)``. Undoing the weights and Platt scaling are both ``sigmoid(scale·logit + shift)``.
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
    return 1.0 / (1.0 + math.exp(-max(logit, -700.0)))  # exp(700) does not overflow


def newton_weights(p: Tensor, labels: Tensor) -> Tensor:
    """Weights of the rows in a logistic regression's Hessian, given predictions and labels (N,).

    They are p·(1 - p), but at least a quarter of the residual: where p is near 0 or 1 and wrong, a step by the exact
    Hessian would overshoot, and steps could diverge.
    """
    return torch.maximum(p * (1 - p), (labels - p).abs() / 4)


def fit_logistic(x: Array, p: Array) -> tuple[Array, float]:
    """Coefficients (n,) and intercept of the logistic regression of probabilities ``p`` (N,) on ``x`` (N, n).

    Every row counts as two: accepted with weight p and rejected with weight 1 - p.
    """
    from sklearn.linear_model import LogisticRegression  # here: decoding does not need it

    labels = np.repeat([1, 0], len(p))
    fit = LogisticRegression(C=np.inf, max_iter=1000, tol=1e-8)
    fit.fit(np.concatenate([x, x]), labels, sample_weight=np.concatenate([p, 1 - p]))
    return fit.coef_[0], float(fit.intercept_[0])


@dataclass(frozen=True)
class Calibration:
    """``sigmoid(scale·logit + shift)``. The scale must be positive, so that the order of logits is kept.

    Attributes:
        scale, shift: numbers of the formula.
        method: how they were found.
        dataset_fingerprint: SHA-256 of the data they were fitted to; None if they were not fitted.
    """

    scale: float
    shift: float
    method: Literal["none", "weights", "platt"]
    dataset_fingerprint: str | None = None

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale) and math.isfinite(self.shift)):
            raise InputError(
                f"calibration: scale={self.scale:.3g}, shift={self.shift:.3g}: must be finite, and the scale positive, "
                "or accepted tokens rank below rejected ones; train the head on more data"
            )

    def __call__(self, logit: float) -> float:
        return sigmoid(self.scale * logit + self.shift)


UNCALIBRATED = Calibration(1.0, 0.0, "none")


def undo_weights(w_acc: float, w_rej: float) -> Calibration:
    """The calibration that undoes the loss weights: odds(a) = (w_rej / w_acc)·odds(â)."""
    return Calibration(1.0, math.log(w_rej / w_acc), "weights")
