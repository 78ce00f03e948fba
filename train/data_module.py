"""Base class of the data of all trainings: batches whose order continues where a run was stopped."""

from __future__ import annotations

from typing import Generic, TypeVar

import pytorch_lightning as pl

from .loader import ResumableLoader
from .options import FittingOptions

B = TypeVar("B")


class ResumableData(pl.LightningDataModule, Generic[B]):
    """Training batches of type B.

    Attributes:
        settings: settings of the training.
        train_loader: training batches.
    """

    settings: FittingOptions
    train_loader: ResumableLoader[B]

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * len(self.train_loader)

    def train_dataloader(self) -> ResumableLoader[B]:
        return self.train_loader

    # Lightning restores a loader's own state only in the middle of an epoch; without this a run resumed at an epoch's
    # end would start over with the first epoch's order.
    def state_dict(self) -> dict[str, int]:
        return self.train_loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.train_loader.load_state_dict(state_dict)
