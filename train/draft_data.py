"""The data module of the training of drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data_gen.documents import Document
from .data_module import ResumableData
from .datasets import require_both, split
from .options import DraftTrainingOptions
from .target_states import StateFolder, Windows, pack


class DraftDataModule(ResumableData[Windows, Windows]):
    """Training and validation windows; documents are held out by the hash of their id.

    Attributes:
        states: the target's states on all windows, if they are stored.

    Raises:
        InputError: training or validation would be empty.
    """

    def __init__(self, documents: Sequence[Document], settings: DraftTrainingOptions) -> None:
        self.states: StateFolder | None = None
        fraction, window = settings.validation_fraction, settings.window
        training, validation = split(documents, [document.id for document in documents], fraction)
        require_both(len(training), len(validation), fraction, "texts")
        generator = torch.Generator().manual_seed(settings.seed)
        order = torch.randperm(len(training), generator=generator).tolist()
        super().__init__(settings, [pack([training[i] for i in order], window)], pack(validation, window))

    @property
    def windows(self) -> Windows:
        """The training windows, followed by those of validation."""
        both = self.training, self.validation
        return Windows(torch.cat([part.tokens for part in both]), torch.cat([part.learned for part in both]))

    def sizes(self, examples: Windows) -> list[int]:
        return [len(examples.tokens)]

    def batch(self, examples: Windows, rows: Tensor, epoch: int | None) -> Windows:
        """This process's windows; without any, one in which nothing is learned."""
        mine, _, _ = self.share(rows)
        empty = not len(mine)
        mine = torch.tensor([0]) if empty else mine
        taken = examples.take(mine)
        if empty:
            taken.learned.zero_()
        first = 0 if examples is self.training else len(self.training.tokens)  # of the examples, in `windows`
        return taken if self.states is None else taken._replace(target=self.states.take(first + mine))
