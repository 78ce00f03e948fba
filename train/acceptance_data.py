"""Batches of a feature dataset for acceptance predictors, read from memory-mapped shards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ..controllers.acceptance.lag_free_head import copied_embeddings
from ..data_gen.feature_shards import TRAIN, VALIDATION, FeatureDataset, Part
from .data_module import ResumableData
from .options import PredictorTrainingOptions


@dataclass(frozen=True)
class Batch:
    """This process's M examples of a batch.

    ``evidence`` and the following tensors exist only for features of target context.

    Attributes:
        states: (M, d) the draft's hidden states, in the precision they are stored in.
        accept: (M,) acceptance probabilities.
        evidence: (M, 7) evidence of each token.
        embedded: (M, d) the draft's output embedding of the token.
        copied: (M, d) output embedding of the token that an n-gram match continues with, zeros if there is none.
        first: index of the first example in the batch of all processes.
        total: number of examples in the batch of all processes.
    """

    states: Tensor
    accept: Tensor
    evidence: Tensor | None = None
    embedded: Tensor | None = None
    copied: Tensor | None = None
    first: int = 0
    total: int = 0

    def to(self, device: torch.device, **_: object) -> Self:
        moved: dict[str, Any] = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


class AcceptanceDataModule(ResumableData[Part, Batch]):
    """Training and validation batches of a feature dataset.

    A batch of ``batch_size`` rollouts (specdec) or drafted tokens (other predictors) is split over the processes.
    """

    settings: PredictorTrainingOptions

    def __init__(self, dataset: FeatureDataset, settings: PredictorTrainingOptions) -> None:
        self.dataset = dataset
        self.by_text, self.embeds = settings.predictor == "specdec", settings.predictor == "lag-free"
        parts = [dataset.part(f"{TRAIN}{i}") for i in range(dataset.training_parts)]
        super().__init__(settings, parts, dataset.part(VALIDATION))

    def evidence_moments(self) -> tuple[Tensor, Tensor]:
        """(7,) mean and standard deviation of the training examples' evidence."""
        count, total, squares = 0, torch.zeros(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
        for shard in self.training.shards:
            evidence = shard.tensors["evidence"].double()
            count += len(evidence)
            total += evidence.sum(0)
            squares += evidence.square().sum(0)
        mean = total / count
        return mean.float(), (squares / count - mean.square()).clamp(min=0).sqrt().float()

    def state_scale(self) -> Tensor:
        """() root mean square of the entries of the states, in the first shard that training reads."""
        return self.training.shards[0].tensors["states"].float().square().mean().sqrt()

    def sizes(self, examples: Part) -> list[int]:
        return examples.texts if self.by_text else examples.rows

    def batch(self, examples: Part, rows: Tensor, epoch: int | None) -> Batch:
        mine, first, total = self.share(rows)
        found = examples.gather(examples.rows_of_texts(mine) if self.by_text else mine)
        if self.by_text:
            return Batch(found["states"], found["accept"], first=first, total=total)
        batch = Batch(found["states"], found["accept"], found["evidence"], first=first, total=total)
        if not self.embeds:
            return batch
        table = self.dataset.embedding
        copied = copied_embeddings(table, found["copies"].long())
        return replace(batch, embedded=table[found["tokens"]], copied=copied)
