"""The acceptance head's training step: weighted binary cross-entropy on soft labels (SpecDec++, §3.3)."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..controllers.acceptance.acceptance_head import AcceptanceHead, AcceptanceHeadConfig, HeadPredictor
from ..controllers.acceptance.calibration import Sigmoid, undo_weights
from .acceptance_module import AcceptanceDataModule, AcceptanceModule, Batch
from .metrics import Bin, StreamedMetrics
from .options import AcceptanceTrainingOptions

PAPER_THRESHOLD = 0.7


def weighted_sums(logits: Tensor, p: Tensor, w_acc: float, w_rej: float) -> tuple[Tensor, Tensor]:
    """``Σ -w_acc·P·log â - w_rej·(1-P)·log(1-â)`` and ``Σ w_acc·P + w_rej·(1-P)``; logits and p are (m,), m ≥ 0.

    Their ratio is the loss. Dividing by the sum of the weights instead of the number of tokens makes the step size
    independent of w_rej.
    """
    accept, reject = w_acc * p, w_rej * (1 - p)
    return -(accept * logsigmoid(logits) + reject * logsigmoid(-logits)).sum(), (accept + reject).sum()


def new_head(hidden_size: int, depth: int, seed: int) -> AcceptanceHead:
    """A head with random weights that depend only on ``seed``; the global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AcceptanceHead(hidden_size, depth)


class SpecDecModule(AcceptanceModule):
    """SpecDec++'s head. ``reliability`` holds the table of the last validation."""

    options = AcceptanceTrainingOptions
    by_text = True
    head: AcceptanceHead

    def __init__(self, settings: AcceptanceTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data)
        self.settings = settings
        self.head = new_head(self.dataset.manifest["hidden_size"], settings.depth, settings.seed)
        self.reliability: list[Bin] = []
        self.seen.append(StreamedMetrics())  # with the loss weights undone

    @classmethod
    def exported(
        cls, settings: AcceptanceTrainingOptions, dataset: dict[str, Any], best: dict[str, Any], common: dict[str, Any]
    ) -> tuple[AcceptanceHead, AcceptanceHeadConfig]:
        assert settings.mixing is not None, "a run's settings are complete"
        config = AcceptanceHeadConfig(
            **common, hidden_size=best["hidden_size"], depth=settings.depth, w_acc=settings.w_acc, w_rej=settings.w_rej,
            mixing=settings.mixing, threshold=PAPER_THRESHOLD, threshold_source="paper default",
        )  # fmt: skip
        head = config.module()
        head.load_state_dict(best["head"])
        return head, config

    def logits(self, batch: Batch) -> Tensor:
        logits: Tensor = self.head(batch.states.float())
        return logits.float()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.share(*weighted_sums(self.logits(batch), batch.accept, self.settings.w_acc, self.settings.w_rej))
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.accept))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits = self.logits(batch)
        self.require_finite("predictions are", logits)
        for metrics, shift in zip(self.seen, (0.0, self.weights.shift), strict=True):
            metrics.update(logits + shift, batch.accept)

    def metrics(self) -> dict[str, float]:
        """Metrics of the head's output and, under ``…_undone``, with the loss weights undone."""
        raw, undone = (metrics.compute() for metrics in self.seen)
        self.reliability = self.seen[0].reliability()
        loss = self.seen[0].loss(self.settings.w_acc, self.settings.w_rej)
        return {"loss": loss, **raw, **{f"{name}_undone": undone[name] for name in ("kl", "brier", "ece")}}

    @property
    def weights(self) -> Sigmoid:
        """The calibration that undoes the loss weights."""
        return undo_weights(self.settings.w_acc, self.settings.w_rej)

    def predictor(self) -> HeadPredictor:
        return HeadPredictor(deepcopy(self.head).cpu(), self.weights, self.mean)

    def findings(self) -> dict[str, Any]:
        return super().findings() | {"reliability": [vars(row) for row in self.reliability]}

    def configure_optimizers(self) -> Any:
        settings, steps = self.settings, self.steps
        # AdamW is Adam when weight_decay is 0, the paper's case.
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
