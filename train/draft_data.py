"""The data module of the training of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..data_gen.documents import Document
from .data_module import ResumableData
from .datasets import require_both, split
from .draft_windows import Windows, pack
from .loader import ResumableLoader
from .options import DraftTrainingOptions
from .target_states import StateFolder


class DraftDataModule(ResumableData[Windows]):
    """Training and validation windows; documents are held out by the hash of their id.

    Raises:
        InputError: training or validation would be empty.
    """

    settings: DraftTrainingOptions

    def __init__(self, documents: Sequence[Document], settings: DraftTrainingOptions) -> None:
        super().__init__()
        self.settings = settings
        self.states: StateFolder | None = None
        training, validation = split(documents, [document.id for document in documents], settings.validation_fraction)
        require_both(len(training), len(validation), settings.validation_fraction, "texts")
        generator = torch.Generator().manual_seed(settings.seed)
        order = torch.randperm(len(training), generator=generator).tolist()
        self.training = pack([training[i] for i in order], settings.window)
        self.validation = pack(validation, settings.window)
        self.train_loader = ResumableLoader(
            len(self.training.tokens), settings.batch_size, settings.seed, self._train_batch
        )

    @property
    def windows(self) -> Windows:
        """The training windows, followed by those of validation."""
        both = self.training, self.validation
        return Windows(torch.cat([part.tokens for part in both]), torch.cat([part.learned for part in both]))

    def _take(self, windows: Windows, rows: Tensor, first: int) -> Windows:
        """This process's part of the windows ``rows``; without any, one in which nothing is learned.

        Args:
            first: the number of the first of ``windows`` in :attr:`windows`.
        """
        if self.trainer is not None:
            rows = rows.tensor_split(self.trainer.world_size)[self.trainer.global_rank]
        empty = not len(rows)
        rows = torch.tensor([0]) if empty else rows
        taken = windows.take(rows)
        if empty:
            taken.learned.zero_()
        return taken if self.states is None else replace(taken, target=self.states.take(first + rows))

    def _train_batch(self, epoch: int, rows: Tensor) -> Windows:
        return self._take(self.training, rows, 0)

    def _validation_batch(self, epoch: int, rows: Tensor) -> Windows:
        return self._take(self.validation, rows, len(self.training.tokens))

    def val_dataloader(self) -> ResumableLoader[Windows]:
        rows, settings = len(self.validation.tokens), self.settings
        return ResumableLoader(rows, settings.batch_size, settings.seed, self._validation_batch, shuffle=False)
