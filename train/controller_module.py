"""What the run folder's callbacks know of a controller in training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytorch_lightning as pl
from torch import nn


class ControllerModule(pl.LightningModule, ABC):
    """A controller in training.

    Attributes:
        head: the weights that are kept.
        criterion: the validation metric whose lowest value makes an epoch the best.
        validation: metrics of the last validation.
    """

    head: nn.Module
    criterion: str
    validation: dict[str, float]

    @abstractmethod
    def lr_at(self, step: int) -> float:
        """Learning rate of step 0, 1, …"""

    def findings(self) -> dict[str, Any]:
        """What else a validation found, in plain numbers; kept with the best weights."""
        return {}
