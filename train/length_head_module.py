"""The length head's training: binary cross-entropy of each drafted token that the target decides on.

So Π of the predicted probabilities is fitted to how often the first k tokens of a draft are all accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import ClassVar

import torch
from torch import Tensor

from ..controllers.acceptance.length_head import LengthHead, LengthHeadConfig
from ..controllers.length import LengthController
from ..controllers.length.planned import PlannedLength
from ..data_gen.draft_states import Examples
from ..simulate.trace import Trace
from .acceptance_module import AcceptanceDataModule, ReplayedModule
from .controller_module import Batch, seeded
from .feature_maker import ACCEPTED, BEYOND
from .options import LengthHeadTrainingOptions


class LengthHeadModule(ReplayedModule):
    """The length head in training."""

    by_text = True
    head: LengthHead
    settings: LengthHeadTrainingOptions
    config = LengthHeadConfig
    renamed: ClassVar = {"rounds": "examples"}

    def __init__(self, settings: LengthHeadTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data)
        size = self.dataset.manifest["hidden_size"]
        self.head = seeded(settings.seed, lambda: LengthHead(size, settings.width))
        torch.nn.init.constant_(self.head.out.bias, float(torch.logit(torch.tensor(self.mean), eps=1e-6)))

    @staticmethod
    def inputs(settings: LengthHeadTrainingOptions, examples: Examples, embedding: Tensor) -> Sequence[Tensor]:
        """Of whole texts; a plan for a prompt is made by what is known before the text's first round."""
        found = examples["rates"], examples["states"]
        if settings.every == "round":
            return found
        begins = examples["places"] == 1
        text = begins.cumsum(0) - 1
        return [column[begins][text] for column in found]

    @staticmethod
    def labels(examples: Examples) -> Tensor:
        return examples["kept"]

    def labelled(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        decided = reached(batch.accept)
        return logits[decided], batch.accept[decided].float()

    def controllers(self) -> Callable[[Trace], LengthController]:
        head = deepcopy(self.head).cpu()
        return lambda trace: PlannedLength(head, self.settings.every, self.mean, self.cost)


def reached(kept: Tensor) -> Tensor:
    """(M, 10) which drafted tokens the target decides on: those before which all were accepted."""
    first = torch.ones_like(kept[:, :1], dtype=torch.bool)
    return (kept != BEYOND) & torch.cat([first, kept[:, :-1] == ACCEPTED], 1)
