"""Base class of the data of all trainings: batches whose order continues where a run was stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import pytorch_lightning as pl
from torch import Tensor

from .loader import ResumableLoader
from .options import TrainingOptions

P = TypeVar("P")
B = TypeVar("B")


class ResumableData(pl.LightningDataModule, ABC, Generic[P, B]):
    """Batches of type B, made of examples of type P.

    Args:
        settings: settings of the training.
        parts: examples to train on; epochs take the parts in turn.
        validation: examples to validate on.

    Attributes:
        train_loader: training batches.
    """

    def __init__(self, settings: TrainingOptions, parts: Sequence[P], validation: P) -> None:
        super().__init__()
        self.settings, self.parts, self.validation = settings, parts, validation
        self.train_loader = ResumableLoader(
            sum(self.sizes(self.training)), settings.batch_size, settings.seed, self._train_batch,
            blocks=self._train_sizes,
        )  # fmt: skip

    @abstractmethod
    def sizes(self, examples: P) -> list[int]:
        """Number of examples in each block that they are stored in."""

    @abstractmethod
    def batch(self, examples: P, rows: Tensor, epoch: int | None) -> B:
        """This process's :meth:`share` of the batch of ``rows`` (M,); ``epoch`` is None in validation."""

    @property
    def training(self) -> P:
        """The examples of the first epoch."""
        return self.parts[0]

    def share(self, rows: Tensor) -> tuple[Tensor, int, int]:
        """This process's rows of a batch, the index of its first one in the batch, and the number of all ``rows``."""
        rank, world = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        shares = rows.tensor_split(world)
        return shares[rank], sum(map(len, shares[:rank])), len(rows)

    def _part(self, epoch: int) -> P:
        return self.parts[epoch % len(self.parts)]

    def _train_sizes(self, epoch: int) -> list[int]:
        return self.sizes(self._part(epoch))

    def _train_batch(self, epoch: int, rows: Tensor) -> B:
        return self.batch(self._part(epoch), rows, epoch)

    def _validation_sizes(self, epoch: int) -> list[int]:
        return self.sizes(self.validation)

    def _validation_batch(self, epoch: int, rows: Tensor) -> B:
        return self.batch(self.validation, rows, None)

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * len(self.train_loader)

    def train_dataloader(self) -> ResumableLoader[B]:
        return self.train_loader

    def val_dataloader(self) -> ResumableLoader[B]:
        settings, sizes = self.settings, self._validation_sizes
        return ResumableLoader(
            sum(sizes(0)), settings.batch_size, settings.seed, self._validation_batch, shuffle=False, blocks=sizes
        )  # fmt: skip

    # Lightning restores a loader's own state only in the middle of an epoch; without this a run resumed at an epoch's
    # end would start over with the first epoch's order.
    def state_dict(self) -> dict[str, int]:
        return self.train_loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.train_loader.load_state_dict(state_dict)
