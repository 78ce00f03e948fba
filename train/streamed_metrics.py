"""Validation metrics from running sums, in constant memory; the sums of several processes can be added.

The definitions are those of :mod:`.metrics`. AUROC is computed from a histogram of the logits, fine enough to agree
with the exact value to about 1e-4.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .metrics import BINS, Bin, expected_calibration_error

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
        """The reliability table, without empty bins."""
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

    def loss(self, w_acc: float, w_rej: float) -> float:
        """The weighted cross-entropy, the ratio of :func:`~.specdec_module.weighted_sums`."""
        n, p, _, log_accept, log_reject, _ = self.sums[:6].tolist()
        return float(-(w_acc * log_accept + w_rej * log_reject) / (w_acc * p + w_rej * (n - p)))

    def compute(self) -> dict[str, float]:
        """All metrics; ``kl_constant`` is the KL of the best constant prediction, the mean of P."""
        n, p, entropy, log_accept, log_reject, squared = self.sums[:6].tolist()
        mean = p / n
        constant = p * math.log(max(mean, 1e-12)) + (n - p) * math.log(max(1 - mean, 1e-12))
        return {
            "kl": (entropy - log_accept - log_reject) / n,
            "kl_constant": (entropy - constant) / n,
            "auroc": self.auroc(),
            "brier": squared / n,
            "ece": expected_calibration_error(self.reliability()),
            "mean_acceptance": mean,
        }
