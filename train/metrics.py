"""Metrics of acceptance heads against soft labels: binary KL, AUROC, Brier score and calibration error.

``logits`` (n,) are the head's outputs, ``p`` (n,) the true conditional acceptance probabilities P in [0, 1]. Labels are
probabilities, not outcomes: a position counts as P of an accepted and 1 - P of a rejected token.

A head trained with weights (w_acc, w_rej) converges to w_acc·a / (w_acc·a + w_rej·(1 - a));
:func:`~specpilot.controllers.acceptance.calibration.undo_weights` inverts this: odds(a) = (w_rej / w_acc)·odds(â).
SpecDec++ (Huang et al. 2024, Table 3) reports the KL of the raw output.

They are computed from running sums, in constant memory; the sums of several processes can be added. AUROC, the
probability that an accepted token is ranked above a rejected one, is that of a histogram of the logits, fine enough to
agree with the exact value to about 1e-4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

BINS = 15


@dataclass(frozen=True)
class Bin:
    """One row of a reliability table: ``count`` positions, their mean â and their mean P."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


RANKS = 1 << 15  # bins of the histogram for AUROC
HIGHEST = 16.0  # logits beyond ±16 share the outer bins


class StreamedMetrics:
    """Sums over examples of logits and true acceptance probabilities P.

    Attributes:
        sums: float64; n, Σ P, Σ negative entropy of P, Σ P·log â, Σ (1-P)·log(1-â), Σ (â-P)², then the reliability
            table's counts, Σ â and Σ P by bin, then the histograms of Σ P and Σ (1-P).
    """

    def __init__(self) -> None:
        self.sums = torch.zeros(6 + 3 * BINS + 2 * RANKS, dtype=torch.float64)

    def update(self, logits: Tensor, p: Tensor) -> None:
        """Add n examples: ``logits`` (n,), ``p`` (n,)."""
        logits, p = logits.detach().double().cpu(), p.detach().double().cpu()
        predicted = torch.sigmoid(logits)
        log_accept, log_reject = (p * logsigmoid(logits)).sum(), ((1 - p) * logsigmoid(-logits)).sum()
        entropy = (torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).sum()
        scalars = torch.stack(
            [p.new_tensor(len(p)), p.sum(), entropy, log_accept, log_reject, ((predicted - p) ** 2).sum()]
        )
        group = (predicted * BINS).long().clamp(max=BINS - 1)
        rank = ((logits / HIGHEST + 1) / 2 * RANKS).long().clamp(0, RANKS - 1)
        tables = [
            torch.bincount(index, weights, minlength=size)
            for index, weights, size in (
                (group, torch.ones_like(p), BINS), (group, predicted, BINS), (group, p, BINS),
                (rank, p, RANKS), (rank, 1 - p, RANKS),
            )
        ]  # fmt: skip
        self.sums += torch.cat([scalars, *tables])

    def reduce(self, total: Callable[[Tensor], Tensor]) -> None:
        """Sum over processes; ``total`` sums a tensor over them."""
        self.sums = total(self.sums)

    def reset(self) -> None:
        self.sums = torch.zeros_like(self.sums)

    def reliability(self) -> list[Bin]:
        """Positions grouped by â into equal intervals of [0, 1]; empty ones are left out."""
        count, predicted, observed = self.sums[6 : 6 + 3 * BINS].view(3, BINS).tolist()
        return [
            Bin(b / BINS, (b + 1) / BINS, round(count[b]), predicted[b] / count[b], observed[b] / count[b])
            for b in range(BINS)
            if count[b] > 0
        ]

    def auroc(self) -> float:
        """AUROC; NaN if all P are 0 or all are 1."""
        accepted, rejected = self.sums[6 + 3 * BINS :].view(2, RANKS)
        pairs = accepted.sum() * rejected.sum()
        if pairs == 0:
            return math.nan
        below = rejected.cumsum(0) - rejected / 2  # ties count half
        return float((accepted * below).sum() / pairs)

    def ece(self) -> float:
        """Mean distance of predicted from observed acceptance, weighted by the bins' counts."""
        table = self.reliability()
        return sum(b.count * abs(b.predicted - b.observed) for b in table) / sum(b.count for b in table)

    def loss(self, w_acc: float, w_rej: float) -> float:
        """The weighted cross-entropy, the ratio of :func:`~.specdec_module.weighted_sums`."""
        n, p, _, log_accept, log_reject, _ = self.sums[:6].tolist()
        return float(-(w_acc * log_accept + w_rej * log_reject) / (w_acc * p + w_rej * (n - p)))

    def compute(self) -> dict[str, float]:
        """All metrics: ``kl``, the mean KL(Bernoulli(P) ‖ Bernoulli(â)) in nats; ``kl_constant``, that of the best
        constant prediction, the mean of P; ``auroc``; ``brier``, the mean of (â - P)²; ``ece``; ``mean_acceptance``.
        """
        n, p, entropy, log_accept, log_reject, squared = self.sums[:6].tolist()
        mean = p / n
        constant = p * math.log(max(mean, 1e-12)) + (n - p) * math.log(max(1 - mean, 1e-12))
        return {
            "kl": (entropy - log_accept - log_reject) / n,
            "kl_constant": (entropy - constant) / n,
            "auroc": self.auroc(),
            "brier": squared / n,
            "ece": self.ece(),
            "mean_acceptance": mean,
        }


def metrics_of(logits: Tensor, p: Tensor) -> StreamedMetrics:
    """Those of n examples: ``logits`` (n,), ``p`` (n,)."""
    found = StreamedMetrics()
    found.update(logits, p)
    return found


def measured(predicted: NDArray[np.float64], p: NDArray[np.float64]) -> StreamedMetrics:
    """Those of the probabilities ``predicted`` (n,) against ``p`` (n,)."""
    return metrics_of(torch.logit(torch.from_numpy(predicted), eps=1e-12), torch.from_numpy(p))
