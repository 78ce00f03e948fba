"""Metrics of acceptance heads against soft labels: binary KL, AUROC, Brier score and calibration error.

``logits`` (n,) are the head's outputs, ``p`` (n,) the true conditional acceptance probabilities P in [0, 1]. Labels are
probabilities, not outcomes: a position counts as P of an accepted and 1 - P of a rejected token.

A head trained with weights (w_acc, w_rej) converges to w_acc·a / (w_acc·a + w_rej·(1 - a)); ``undo_weights`` inverts
this: odds(a) = (w_rej / w_acc)·odds(â). SpecDec++ (Huang et al. 2024, Table 3) reports the KL of the raw output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torchmetrics.functional import mean_squared_error

BINS = 15


def undo_weights(logits: Tensor, w_acc: float, w_rej: float) -> Tensor:
    """Logits (n,) of the acceptance probability, from the logits of a head trained with the given loss weights."""
    return logits + math.log(w_rej / w_acc)


def binary_kl(logits: Tensor, p: Tensor) -> float:
    """Mean KL(Bernoulli(P) ‖ Bernoulli(sigmoid(logits))) in nats, computed from logits (n,) to avoid overflow."""
    logits, p = logits.double(), p.double()
    negative_entropy = torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)
    cross_entropy = -(p * logsigmoid(logits) + (1 - p) * logsigmoid(-logits))
    return float((negative_entropy + cross_entropy).mean())


def auroc(logits: Tensor, p: Tensor) -> float:
    """Probability that an accepted token is ranked above a rejected one; NaN if all P are 0 or all are 1."""
    from sklearn.metrics import roc_auc_score

    positive, negative = p.double(), 1 - p.double()
    if positive.sum() == 0 or negative.sum() == 0:
        return math.nan
    score = torch.cat([logits, logits]).numpy()
    label = torch.cat([torch.ones_like(p), torch.zeros_like(p)]).numpy()
    return float(roc_auc_score(label, score, sample_weight=torch.cat([positive, negative]).numpy()))


def brier(logits: Tensor, p: Tensor) -> float:
    """Mean of (â - P)²."""
    return float(mean_squared_error(torch.sigmoid(logits.double()), p.double()))


@dataclass(frozen=True)
class Bin:
    """One row of a reliability table: ``count`` positions, their mean â and their mean P."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


def reliability(logits: Tensor, p: Tensor, bins: int = BINS) -> list[Bin]:
    """Positions grouped by â into ``bins`` equal intervals of [0, 1]; empty ones are left out."""
    predicted = torch.sigmoid(logits.double())
    index = (predicted * bins).long().clamp(max=bins - 1)
    count = torch.bincount(index, minlength=bins)
    mean_predicted = torch.bincount(index, predicted, minlength=bins) / count
    mean_observed = torch.bincount(index, p.double(), minlength=bins) / count
    return [
        Bin(b / bins, (b + 1) / bins, int(count[b]), float(mean_predicted[b]), float(mean_observed[b]))
        for b in range(bins)
        if count[b] > 0
    ]


def expected_calibration_error(table: list[Bin]) -> float:
    """Mean distance of predicted from observed, weighted by the bins' counts."""
    return sum(b.count * abs(b.predicted - b.observed) for b in table) / sum(b.count for b in table)
