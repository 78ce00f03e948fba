"""Stops a diverged training with an InputError."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from .controller_module import ControllerModule


class RefuseDivergence(Callback):
    """Checks that the loss of every step and the weights before validation and saving are finite."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, ControllerModule)
        pl_module.require_finite("the loss is", outputs["loss"])

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, ControllerModule)
        for parameter in pl_module.parameters():
            pl_module.require_finite("weights are", parameter)
