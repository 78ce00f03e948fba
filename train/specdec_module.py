"""The acceptance head's training step: weighted binary cross-entropy on soft labels (SpecDec++, §3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import get_cosine_schedule_with_warmup

from ..controllers.acceptance.calibration import Calibration, undo_weights
from ..controllers.acceptance.specdec_head import AcceptanceHead, AcceptanceHeadConfig, HeadPredictor
from ..data_gen.draft_states import Examples
from .acceptance_module import AcceptanceDataModule, AcceptanceModule
from .controller_module import Batch, seeded
from .options import SpecDecTrainingOptions


def weighted_sums(logits: Tensor, p: Tensor, w_acc: float, w_rej: float) -> tuple[Tensor, Tensor]:
    """``Σ -w_acc·P·log â - w_rej·(1-P)·log(1-â)`` and ``Σ w_acc·P + w_rej·(1-P)``; logits and p are (m,), m ≥ 0.

    Their ratio is the loss. Dividing by the sum of the weights instead of the number of tokens makes the step size
    independent of w_rej.
    """
    accept, reject = w_acc * p, w_rej * (1 - p)
    return -(accept * logsigmoid(logits) + reject * logsigmoid(-logits)).sum(), (accept + reject).sum()


class SpecDecModule(AcceptanceModule):
    """SpecDec++'s head."""

    by_text = True
    head: AcceptanceHead
    settings: SpecDecTrainingOptions
    config = AcceptanceHeadConfig

    def __init__(self, settings: SpecDecTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data)
        size = self.dataset.manifest["hidden_size"]
        self.head = seeded(settings.seed, lambda: AcceptanceHead(size, settings.depth))

    @staticmethod
    def inputs(settings: SpecDecTrainingOptions, examples: Examples, embedding: Tensor) -> Sequence[Tensor]:
        return (examples["states"],)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return weighted_sums(self.logits(batch), batch.accept, self.settings.w_acc, self.settings.w_rej)

    def predictions(self, batch: Batch) -> tuple[Tensor, ...]:
        logits = self.logits(batch)
        return logits, logits + self.weights.shift

    def metrics(self) -> dict[str, float]:
        """Metrics of the head's output and, under ``…_undone``, with the loss weights undone."""
        raw, undone = (metrics.compute() for metrics in self.found)
        loss, weight = weighted_sums(self.found[0].logits, self.found[0].p, self.settings.w_acc, self.settings.w_rej)
        return {
            "loss": float(loss / weight),
            **raw,
            **{f"{name}_undone": undone[name] for name in ("kl", "brier", "ece")},
        }

    @property
    def weights(self) -> Calibration:
        """The calibration that undoes the loss weights."""
        return undo_weights(self.settings.w_acc, self.settings.w_rej)

    def predictor(self) -> HeadPredictor:
        return HeadPredictor(deepcopy(self.head).cpu(), self.weights, self.mean)

    def schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return get_cosine_schedule_with_warmup(optimizer, 0, self.steps)  # type: ignore[no-any-return]
