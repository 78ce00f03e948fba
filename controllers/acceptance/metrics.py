"""Metrics of acceptance heads against soft labels: binary KL, AUROC, Brier score and calibration error.

``logits`` (n,) are the head's outputs, ``p`` (n,) the true conditional acceptance probabilities P in [0, 1]. Labels are
probabilities, not outcomes: a position counts as an accepted token with weight P and a rejected one with weight 1 - P.

A head trained with weights (w_acc, w_rej) converges to w_acc·a / (w_acc·a + w_rej·(1 - a));
:func:`~specpilot.controllers.acceptance.calibration.undo_weights` inverts this: odds(a) = (w_rej / w_acc)·odds(â).
SpecDec++ (Huang et al. 2024, Table 3) reports the KL of the raw output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import logsigmoid

BINS = 15


@dataclass(frozen=True)
class Bin:
    """One row of a reliability table.

    Attributes:
        low, high: the interval of â.
        count: number of positions in it.
        predicted: their mean â.
        observed: their mean P.
    """

    low: float
    high: float
    count: int
    predicted: float
    observed: float


class Metrics:
    """Metrics of n examples.

    Args:
        logits: (n,) logits of a head.
        p: (n,) true acceptance probabilities P.
    """

    def __init__(self, logits: Tensor, p: Tensor) -> None:
        self.logits, self.p = (values.detach().double().cpu() for values in (logits, p))
        self.predicted = torch.sigmoid(self.logits)

    def reliability(self) -> list[Bin]:
        """Return the positions grouped by â into equal intervals of [0, 1], without empty intervals."""
        group, table = (self.predicted * BINS).long().clamp(max=BINS - 1), []
        for b in sorted({*group.tolist()}):
            predicted, observed = self.predicted[group == b], self.p[group == b]
            table.append(Bin(b / BINS, (b + 1) / BINS, len(observed), float(predicted.mean()), float(observed.mean())))
        return table

    def auroc(self) -> float:
        """Return the probability that an accepted token ranks above a rejected one; NaN if all P are 0 or all are 1."""
        if not 0 < float(self.p.sum()) < len(self.p):
            return math.nan
        outcomes, weights = np.repeat([1, 0], len(self.p)), torch.cat([self.p, 1 - self.p])
        return float(roc_auc_score(outcomes, torch.cat([self.logits] * 2), sample_weight=weights))

    def ece(self) -> float:
        """Return the mean distance of predicted from observed acceptance, weighted by the bins' counts."""
        return sum(b.count * abs(b.predicted - b.observed) for b in self.reliability()) / len(self.p)

    def compute(self) -> dict[str, float]:
        """Return all metrics by name.

        ``kl`` is the mean KL(Bernoulli(P) ‖ Bernoulli(â)) in nats, and ``kl_constant`` that of the best constant
        prediction, the mean of P. ``brier`` is the mean of (â - P)². The others are ``auroc``, ``ece`` and
        ``mean_acceptance``.
        """
        p, mean = self.p, self.p.mean()
        negative_entropy = (torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).mean()
        likelihood = (p * logsigmoid(self.logits) + (1 - p) * logsigmoid(-self.logits)).mean()
        return {
            "kl": float(negative_entropy - likelihood),
            "kl_constant": float(negative_entropy - torch.xlogy(mean, mean) - torch.xlogy(1 - mean, 1 - mean)),
            "auroc": self.auroc(),
            "brier": float((self.predicted - p).square().mean()),
            "ece": self.ece(),
            "mean_acceptance": float(mean),
        }


def measured(predicted: NDArray[np.float64], p: NDArray[np.float64]) -> Metrics:
    """Return the metrics of the probabilities ``predicted`` (n,) against the true probabilities ``p`` (n,)."""
    return Metrics(torch.logit(torch.from_numpy(predicted), eps=1e-12), torch.from_numpy(p))
