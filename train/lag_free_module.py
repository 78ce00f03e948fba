"""The lag-free head's training step: binary cross-entropy on soft labels."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..controllers.acceptance.lag_free_head import FEATURES, VECTORS, LagFreeHead, LagFreeHeadConfig
from ..controllers.length import LagFreePredictor
from .acceptance_module import AcceptanceDataModule, AcceptanceModule, Batch
from .options import LagFreeTrainingOptions


def new_head(settings: LagFreeTrainingOptions, data: AcceptanceDataModule) -> LagFreeHead:
    """A head with random weights that depend on the seed alone, and the scales of the training examples' inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = LagFreeHead(data.dataset.manifest["hidden_size"], settings.width)
    mean, scale = data.evidence_moments()
    head.mean.copy_(mean)
    head.scale.copy_(torch.where(scale > 1e-6, scale, 1.0))
    head.state_scale.copy_(data.state_scale())
    return head


class LagFreeModule(AcceptanceModule):
    """The lag-free head."""

    options = LagFreeTrainingOptions
    embeds = True
    head: LagFreeHead

    def __init__(self, settings: LagFreeTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data)
        self.settings = settings
        self.head = new_head(settings, data)

    @classmethod
    def exported(
        cls, settings: LagFreeTrainingOptions, dataset: dict[str, Any], best: dict[str, Any], common: dict[str, Any]
    ) -> tuple[LagFreeHead, LagFreeHeadConfig]:
        config = LagFreeHeadConfig(
            **common, hidden_size=best["hidden_size"], width=settings.width, uses_ngrams=settings.use_ngrams,
            mean=best["mean"], tokens=best["examples"],
        )  # fmt: skip
        head = config.module()
        head.load_state_dict(best["head"])
        return head, config

    def logits(self, batch: Batch, mask: Tensor | None = None) -> Tensor:
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

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits = self.logits(batch, self.mask(batch))
        losses = F.binary_cross_entropy_with_logits(logits, batch.accept, reduction="sum")
        loss = self.share(losses, losses.new_tensor(len(batch.accept)))
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.accept))
        return loss

    def mask(self, batch: Batch) -> Tensor | None:
        """(M, 3d) factors of the entries of the three vectors."""
        width, count = VECTORS * self.head.hidden_size, len(batch.accept)
        return self.dropout(self.settings.dropout, width, first=batch.first, count=count, total=batch.total)

    def predictor(self) -> LagFreePredictor:
        return LagFreePredictor(
            deepcopy(self.head).cpu(), self.dataset.embedding,
            mean=self.mean, uses_ngrams=self.settings.use_ngrams,
        )  # fmt: skip

    def configure_optimizers(self) -> Any:
        settings = self.settings
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
