"""The acceptance head's training step: weighted binary cross-entropy on soft labels (SpecDec++, §3.3)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel

from ..controllers.acceptance.acceptance_head import AcceptanceHead
from ..options import AcceptanceTrainingOptions
from .acceptance_data import Batch, draft_features
from .controller_module import ControllerModule
from .metrics import Bin, acceptance_metrics, reliability


def weighted_bce(logits: Tensor, p: Tensor, w_acc: float, w_rej: float) -> Tensor:
    """``Σ -w_acc·P·log â - w_rej·(1-P)·log(1-â)`` over ``Σ w_acc·P + w_rej·(1-P)``; logits and p are (m,), m ≥ 0.

    Dividing by the weights' sum instead of the number of tokens keeps the size of a step independent of w_rej.
    """
    accept, reject = w_acc * p, w_rej * (1 - p)
    loss = -(accept * logsigmoid(logits) + reject * logsigmoid(-logits)).sum()
    return loss / (accept + reject).sum().clamp(min=1e-12)  # a batch may hold no token of the draft's


def new_head(hidden_size: int, depth: int, seed: int) -> AcceptanceHead:
    """A head with random weights that depend on ``seed`` alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AcceptanceHead(hidden_size, depth)


class AcceptanceModule(ControllerModule):
    """The head in training, and the frozen draft it listens to.

    ``validation`` and ``reliability`` hold the results of the last validation.
    """

    criterion = "kl"

    def __init__(
        self, head: AcceptanceHead, draft: PreTrainedModel, settings: AcceptanceTrainingOptions, total_steps: int
    ) -> None:
        super().__init__()
        self.head = head
        self._draft = (draft,)  # in a tuple it is no submodule: neither trained nor written to checkpoints
        self.settings, self.total_steps = settings, total_steps
        self.validation: dict[str, float] = {}
        self.reliability: list[Bin] = []
        self._seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, batch: Batch) -> Tensor:
        """Logits (M,) of the batch's supervised tokens."""
        return self.head(draft_features(self._draft[0], batch))  # type: ignore[no-any-return]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = weighted_bce(self(batch), batch.p, self.settings.w_acc, self.settings.w_rej)
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.tokens))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._seen.append((self(batch).cpu(), batch.p.cpu()))

    def on_validation_epoch_end(self) -> None:
        logits, p = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        self._seen.clear()
        w_acc, w_rej = self.settings.w_acc, self.settings.w_rej
        loss = float(weighted_bce(logits, p, w_acc, w_rej))
        self.validation = {"loss": loss, **acceptance_metrics(logits, p, w_acc=w_acc, w_rej=w_rej)}
        self.reliability = reliability(logits, p)
        self.log("val_kl", self.validation["kl"], prog_bar=True, logger=False)

    def findings(self) -> dict[str, Any]:
        return {"reliability": [vars(row) for row in self.reliability]}

    def lr_at(self, step: int) -> float:
        """Learning rate of step 0, 1, …: half a cosine from ``lr`` to 0 over all steps."""
        return self.settings.lr * _cosine(step, self.total_steps)

    def configure_optimizers(self) -> Any:
        settings, total = self.settings, self.total_steps
        # AdamW is Adam when weight_decay is 0, the paper's case.
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _cosine(step, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _cosine(step: int, total: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / total))
