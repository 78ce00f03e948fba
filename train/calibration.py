"""Calibration with scikit-learn: maps logits to probabilities, and evaluates probabilities.

Labels are probabilities P in [0, 1], not outcomes: every position counts as two binary rows, accepted with weight P and
rejected with weight 1 - P. This fits and evaluates the expectation over the outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from ..controllers.acceptance.calibration import Calibration, Isotonic, Sigmoid, undo_weights
from .figure import canvas, label, save
from .metrics import auroc, binary_kl, brier, expected_calibration_error, reliability

Array = NDArray[np.float64]
PLACES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)  # edges of the position groups that ECE is reported for


def logistic(x: Array, p: Array, *, intercept: bool = True) -> tuple[Array, float]:
    """Coefficients (n,) and intercept of the logistic regression of probabilities ``p`` (N,) on ``x`` (N, n)."""
    label = np.repeat([1, 0], len(p))
    fit = LogisticRegression(C=np.inf, fit_intercept=intercept, max_iter=1000, tol=1e-8)
    fit.fit(np.concatenate([x, x]), label, sample_weight=np.concatenate([p, 1 - p]))
    return fit.coef_[0], float(fit.intercept_[0]) if intercept else 0.0


def logistic_probabilities(x: Array, coefficients: Array, intercept: float) -> Array:
    """(N,) predictions of a model fitted by :func:`logistic` for ``x`` (N, n)."""
    return np.asarray(torch.from_numpy(x @ coefficients + intercept).sigmoid().numpy())


def fit_temperature(logits: Array, p: Array, weights: Sigmoid) -> Calibration:
    """``sigmoid((logit + log w) / T)``: undo the loss weights, then divide by one temperature."""
    scale = float(logistic(logits[:, None] + weights.shift, p, intercept=False)[0][0])
    return Sigmoid(scale, scale * weights.shift, "temperature")


def fit_platt(logits: Array, p: Array, weights: Sigmoid) -> Calibration:
    scale, shift = logistic(logits[:, None], p)
    return Sigmoid(float(scale[0]), shift, "platt")


def fit_isotonic(logits: Array, p: Array, weights: Sigmoid) -> Calibration:
    fit = IsotonicRegression(y_min=0, y_max=1).fit(logits, p)
    return Isotonic(tuple(fit.X_thresholds_.tolist()), tuple(fit.y_thresholds_.tolist()))


METHODS: dict[str, Callable[[Array, Array, Sigmoid], Calibration]] = {
    "weights": lambda logits, p, weights: weights,
    "temperature": fit_temperature,
    "platt": fit_platt,
    "isotonic": fit_isotonic,
}


def fit_all(logits: Array, p: Array, *, w_acc: float, w_rej: float) -> dict[str, Calibration]:
    """Every method fitted to a head's ``logits`` (N,) and the true probabilities ``p`` (N,)."""
    return {name: fit(logits, p, undo_weights(w_acc, w_rej)) for name, fit in METHODS.items()}


def evaluate(predicted: Array, p: Array, place: NDArray[np.int64]) -> dict[str, Any]:
    """AUROC, Brier score, KL, ECE, and ECE by position ``place`` (N,) of ``predicted`` (N,) against ``p`` (N,)."""
    truth = torch.from_numpy(p)
    logits = torch.logit(torch.from_numpy(predicted), eps=1e-12)

    def ece(where: NDArray[np.bool_] | slice) -> float:
        return expected_calibration_error(reliability(logits[where], truth[where]))

    group = np.searchsorted(PLACES, place, side="right") - 1
    return {
        "auroc": auroc(logits, truth),
        "brier": brier(logits, truth),
        "kl": binary_kl(logits, truth),
        "ece": ece(slice(None)),
        "ece_by_place": {str(PLACES[g]): ece(group == g) for g in np.unique(group)},
    }


def plot_reliability(predictions: dict[str, tuple[Array, Array]], file: Path) -> None:
    """Plot observed against predicted acceptance, a line per name → (predicted, p); point sizes are shares."""
    figure, axes = canvas(6, 6)
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    for name, (predicted, p) in predictions.items():
        bins = reliability(torch.logit(torch.from_numpy(predicted), eps=1e-12), torch.from_numpy(p))
        x, y = [b.predicted for b in bins], [b.observed for b in bins]
        (line,) = axes.plot(x, y, label=name)
        axes.scatter(x, y, [400 * b.count / len(p) for b in bins], color=line.get_color())
    label(axes, "predicted acceptance probability", "mean acceptance probability")
    save(figure, file)


def apply(calibration: Calibration, logits: Array) -> Array:
    """(N,) calibrated probabilities of ``logits`` (N,), by the function used in decoding."""
    return np.array([calibration(float(logit)) for logit in logits])
