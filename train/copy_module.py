"""The copy head's training step: binary cross-entropy on whether the text goes on with the copy."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..controllers.acceptance.copy_head import VECTORS, CopyHead
from .controller_module import ControllerModule
from .copy_data import Copies, CopyDataModule
from .options import CopyTrainingOptions
from .streamed_metrics import StreamedMetrics


def new_copy_head(settings: CopyTrainingOptions, data: CopyDataModule) -> CopyHead:
    """A head with random weights that depend on the seed alone, and the scales of the training examples' evidence."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = CopyHead(data.embedding.shape[1], settings.width)
    scale, mean = torch.std_mean(data.training.evidence, 0, correction=0)
    head.mean.copy_(mean)
    head.scale.copy_(torch.where(scale > 1e-6, scale, 1.0))
    return head


class CopyModule(ControllerModule):
    """The copy head in training. The best epoch is that of the lowest validation KL."""

    head: CopyHead
    criterion = "kl"

    def __init__(self, settings: CopyTrainingOptions, data: CopyDataModule) -> None:
        super().__init__(settings)
        self.settings, self.steps = settings, data.total_steps
        self.head = new_copy_head(settings, data)
        self.examples = len(data.training.kept)
        self.seen, self.untrained = StreamedMetrics(), StreamedMetrics()  # of the head, and of the text's own rates

    def logits(self, batch: Copies, mask: Tensor | None = None) -> Tensor:
        """(M,) logits of acceptance."""
        assert batch.copied is not None
        assert batch.last_embedded is not None
        logits: Tensor = self.head(batch.evidence, batch.copied, batch.last_embedded, mask)
        return logits.float()

    def training_step(self, batch: Copies, batch_idx: int) -> Tensor:
        logits = self.logits(batch, self.mask(batch))
        losses = F.binary_cross_entropy_with_logits(logits, batch.kept, reduction="sum")
        loss = self.share(losses, losses.new_tensor(len(batch.kept)))
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.kept))
        return loss

    def mask(self, batch: Copies) -> Tensor | None:
        """(M, 2d) factors of the entries of the embeddings."""
        width, count = VECTORS * self.head.hidden_size, len(batch.kept)
        return self.dropout(self.settings.dropout, width, first=batch.first, count=count, total=batch.total)

    def on_validation_epoch_start(self) -> None:
        for metrics in (self.seen, self.untrained):
            metrics.reset()

    def validation_step(self, batch: Copies, batch_idx: int) -> None:
        logits = self.logits(batch)
        self.require_finite("predictions are", logits)
        self.seen.update(logits, batch.kept)
        self.untrained.update(torch.logit(batch.rate, eps=1e-4), batch.kept)

    def on_validation_epoch_end(self) -> None:
        for metrics in (self.seen, self.untrained):
            metrics.reduce(self.total)
        untrained = self.untrained.compute()
        self.validation = self.seen.compute() | {f"{name}_rates": untrained[name] for name in ("kl", "auroc")}
        self.log("val_kl", self.validation["kl"], prog_bar=True, logger=False, sync_dist=True)

    def score(self) -> float:
        return -self.validation["kl"]

    def findings(self) -> dict[str, Any]:
        return {"examples": self.examples, "hidden_size": self.head.hidden_size}

    def configure_optimizers(self) -> Any:
        settings = self.settings
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
