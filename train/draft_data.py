"""Windows of text for the training of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pytorch_lightning as pl
import torch
from torch import Tensor

from ..controllers.errors import InputError
from ..data_gen.documents import Document
from ..data_gen.split import is_validation
from ..options import DraftTrainingOptions
from .loader import ResumableLoader


@dataclass(frozen=True)
class Windows:
    """B windows of T tokens.

    Attributes:
        tokens: (B, T).
        learned: (B, T) whether the token after each is one that the draft is to propose.
    """

    tokens: Tensor
    learned: Tensor

    def take(self, rows: Tensor) -> Windows:
        return Windows(self.tokens[rows], self.learned[rows])

    def to(self, device: torch.device, **_: object) -> Self:
        return type(self)(self.tokens.to(device), self.learned.to(device))


def pack(documents: Sequence[Document], window: int) -> Windows:
    """The documents one after another, cut into windows; the last one is filled with tokens that nothing follows."""
    tokens: list[int] = []
    learned: list[bool] = []
    for document in documents:
        count, start = len(document.tokens), max(1, document.start)
        tokens += document.tokens
        learned += [place + 1 >= start for place in range(count - 1)] + [False]
    missing = -len(tokens) % window
    shape = -1, window
    return Windows(
        torch.tensor(tokens + [0] * missing, dtype=torch.int32).view(shape),
        torch.tensor(learned + [False] * missing).view(shape),
    )


class DraftDataModule(pl.LightningDataModule):
    """Training and validation windows; documents are held out by the hash of their id.

    Raises:
        InputError: training or validation would be empty.
    """

    def __init__(self, documents: Sequence[Document], settings: DraftTrainingOptions) -> None:
        super().__init__()
        self.settings = settings
        parts: tuple[list[Document], list[Document]] = [], []
        for document in documents:
            parts[is_validation(document.id, settings.validation_fraction)].append(document)
        if not all(parts):
            raise InputError(
                f"validation_fraction={settings.validation_fraction}: gives {len(parts[0])} texts to training and "
                f"{len(parts[1])} to validation; each needs at least one: use more data or another fraction"
            )
        generator = torch.Generator().manual_seed(settings.seed)
        order = torch.randperm(len(parts[0]), generator=generator).tolist()
        self.training = pack([parts[0][i] for i in order], settings.window)
        self.validation = pack(parts[1], settings.window)
        self.train_loader = ResumableLoader(
            len(self.training.tokens), settings.batch_size, settings.seed, self._train_batch
        )

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * len(self.train_loader)

    def _take(self, windows: Windows, rows: Tensor) -> Windows:
        """This process's part of the windows ``rows``; without any, one in which nothing is learned."""
        if self.trainer is not None:
            rows = rows.tensor_split(self.trainer.world_size)[self.trainer.global_rank]
        if not len(rows):
            return Windows(windows.tokens[:1], torch.zeros_like(windows.learned[:1]))
        return windows.take(rows)

    def _train_batch(self, epoch: int, rows: Tensor) -> Windows:
        return self._take(self.training, rows)

    def _validation_batch(self, epoch: int, rows: Tensor) -> Windows:
        return self._take(self.validation, rows)

    def train_dataloader(self) -> ResumableLoader[Windows]:
        return self.train_loader

    def val_dataloader(self) -> ResumableLoader[Windows]:
        rows, settings = len(self.validation.tokens), self.settings
        return ResumableLoader(rows, settings.batch_size, settings.seed, self._validation_batch, shuffle=False)

    # As in AcceptanceDataModule: Lightning restores a loader's own state only in the middle of an epoch.
    def state_dict(self) -> dict[str, int]:
        return self.train_loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.train_loader.load_state_dict(state_dict)
