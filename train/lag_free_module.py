"""The lag-free head's training step: binary cross-entropy on soft labels, of both outputs."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..controllers.acceptance.lag_free_head import FEATURES, VECTORS, LagFreeHead
from ..controllers.length import AcceptancePredictor, LagFreePredictor, Prediction
from ..simulate.trace import Trace
from .acceptance_data import AcceptanceDataModule, Batch
from .acceptance_module import AcceptanceModule
from .options import LagFreeTrainingOptions
from .streamed_metrics import StreamedMetrics


def new_head(settings: LagFreeTrainingOptions, data: AcceptanceDataModule) -> LagFreeHead:
    """A head with random weights that depend on the seed alone, and the scales of the training examples' inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = LagFreeHead(data.dataset.manifest["hidden_size"], settings.width, light=settings.light)
    mean, scale = data.evidence_moments()
    head.mean.copy_(mean)
    head.scale.copy_(torch.where(scale > 1e-6, scale, 1.0))
    if head.light:
        head.state_scale.copy_(data.state_scale())
    return head


class LagFreeModule(AcceptanceModule):
    """The lag-free head."""

    head: LagFreeHead

    def __init__(self, settings: LagFreeTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data.dataset, data.total_steps)
        self.settings = settings
        self.head = new_head(settings, data)
        self.predicts_next = data.dataset.predicts_next
        self.seen.append(StreamedMetrics())  # of the second output

    def both(self, batch: Batch, mask: Tensor | None = None) -> Tensor:
        """(M, 2) logits."""
        assert batch.evidence is not None
        assert batch.embedded is not None
        assert batch.copied is not None
        evidence, copied = batch.evidence, batch.copied
        if not self.settings.use_ngrams:
            evidence, copied = (
                F.pad(evidence[:, :FEATURES], (0, evidence.shape[1] - FEATURES)),
                torch.zeros_like(copied),
            )
        logits: Tensor = self.head(evidence, batch.states, batch.embedded, copied, mask)
        return logits.float()

    def logits(self, batch: Batch) -> Tensor:
        return self.both(batch)[:, 0]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        assert batch.then is not None
        accept, then = self.both(batch, self.mask(batch)).unbind(-1)
        known = batch.then.isfinite()
        loss = self.share(_cross_entropy(accept, batch.accept), batch.accept.new_tensor(len(batch.accept)))
        loss = loss + self.share(_cross_entropy(then[known], batch.then[known]), known.sum().float())
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.accept))
        return loss

    def mask(self, batch: Batch) -> Tensor | None:
        """(M, 3d) factors of the entries of the three vectors."""
        width, count = VECTORS * self.head.hidden_size, len(batch.accept)
        return self.dropout(self.settings.dropout, width, first=batch.first, count=count, total=batch.total)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        assert batch.then is not None
        both = self.both(batch)
        self.require_finite("predictions are", both)
        accept, then = both.unbind(-1)
        known = batch.then.isfinite()
        self.seen[0].update(accept, batch.accept)
        self.seen[1].update(then[known], batch.then[known])

    def metrics(self) -> dict[str, float]:
        return super().metrics() | ({"next_auroc": self.seen[1].auroc()} if self.predicts_next else {})

    def findings(self) -> dict[str, Any]:
        return super().findings() | {"predicts_next": self.predicts_next}

    def predictor(self) -> LagFreePredictor:
        return LagFreePredictor(
            deepcopy(self.head).cpu(), self.dataset.embedding,
            mean=self.mean, predicts_next=self.predicts_next, uses_ngrams=self.settings.use_ngrams,
        )  # fmt: skip

    def predict_trace(self, predictor: AcceptancePredictor, trace: Trace) -> list[Prediction]:
        assert isinstance(predictor, LagFreePredictor)
        return predictor.predict_all(trace.signals, trace.ngram_matches, trace.states, trace.tokens)

    def configure_optimizers(self) -> Any:
        settings = self.settings
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _cross_entropy(logits: Tensor, p: Tensor) -> Tensor:
    """Σ over examples."""
    return F.binary_cross_entropy_with_logits(logits, p, reduction="sum")
