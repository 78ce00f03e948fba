"""The lag-free head's training: binary cross-entropy on soft labels."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..controllers.acceptance.feature_model import FEATURES
from ..controllers.acceptance.lag_free_head import (
    INPUTS,
    VECTORS,
    LagFreeHead,
    LagFreeHeadConfig,
    LagFreePredictor,
    copied_embeddings,
)
from ..data_gen.draft_states import Examples
from .acceptance_module import AcceptanceDataModule, AcceptanceModule
from .controller_module import seeded
from .options import LagFreeTrainingOptions


class LagFreeModule(AcceptanceModule):
    """The lag-free head, with the scales of the training examples' inputs."""

    head: LagFreeHead
    settings: LagFreeTrainingOptions
    config = LagFreeHeadConfig
    renamed: ClassVar = {"uses_ngrams": "use_ngrams", "tokens": "examples"}

    def __init__(self, settings: LagFreeTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data)
        size = self.dataset.manifest["hidden_size"]
        self.head = seeded(settings.seed, lambda: LagFreeHead(size, settings.width))
        self.head.standardise(*data.evidence_moments())
        self.head.state_scale.copy_(data.state_scale())
        self.dropout, self.masked = settings.dropout, VECTORS * size

    @staticmethod
    def inputs(settings: LagFreeTrainingOptions, examples: Examples, embedding: Tensor) -> Sequence[Tensor]:
        evidence, copied = examples["evidence"], copied_embeddings(embedding, examples["copies"].long())
        if not settings.use_ngrams:
            evidence, copied = F.pad(evidence[:, :FEATURES], (0, INPUTS - FEATURES)), torch.zeros_like(copied)
        return evidence, examples["states"], embedding[examples["tokens"]], copied

    def predictor(self) -> LagFreePredictor:
        return LagFreePredictor(
            deepcopy(self.head).cpu(), self.dataset.embedding,
            mean=self.mean, uses_ngrams=self.settings.use_ngrams,
        )  # fmt: skip
