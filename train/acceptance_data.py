"""Batches of a feature dataset for acceptance predictors, read from memory-mapped shards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ..controllers.acceptance.lag_free_head import copied_embeddings
from ..data_gen.feature_shards import TRAIN, VALIDATION, FeatureDataset, Part
from .data_module import ResumableData
from .loader import ResumableLoader
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


class AcceptanceDataModule(ResumableData[Batch]):
    """Training and validation batches of a feature dataset.

    A batch of ``batch_size`` rollouts (specdec) or drafted tokens (other predictors) is split over the processes.
    """

    settings: PredictorTrainingOptions

    def __init__(self, dataset: FeatureDataset, settings: PredictorTrainingOptions) -> None:
        super().__init__()
        self.dataset, self.settings = dataset, settings
        self.by_text, self.embeds = settings.predictor == "specdec", settings.predictor == "lag-free"
        self.training = [dataset.part(f"{TRAIN}{i}") for i in range(dataset.training_parts)]
        self.validation = dataset.part(VALIDATION)
        rows = sum(self._train_blocks(0))
        self.train_loader = ResumableLoader(
            rows, settings.batch_size, settings.seed, self._train_batch, blocks=self._train_blocks
        )

    def evidence_moments(self) -> tuple[Tensor, Tensor]:
        """(7,) mean and standard deviation of the training examples' evidence."""
        count, total, squares = 0, torch.zeros(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
        for shard in self.training[0].shards:
            evidence = shard.tensors["evidence"].double()
            count += len(evidence)
            total += evidence.sum(0)
            squares += evidence.square().sum(0)
        mean = total / count
        return mean.float(), (squares / count - mean.square()).clamp(min=0).sqrt().float()

    def state_scale(self) -> Tensor:
        """() root mean square of the entries of the states, in the first shard that training reads."""
        return self.training[0].shards[0].tensors["states"].float().square().mean().sqrt()

    def _sizes(self, part: Part) -> list[int]:
        return part.texts if self.by_text else part.rows

    def _part(self, epoch: int) -> Part:
        return self.training[epoch % len(self.training)]

    def _train_blocks(self, epoch: int) -> list[int]:
        return self._sizes(self._part(epoch))

    def _validation_blocks(self, epoch: int) -> list[int]:
        return self._sizes(self.validation)

    def _batch(self, part: Part, units: Tensor) -> Batch:
        rank, world = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        parts = units.tensor_split(world)
        rows = part.rows_of_texts(parts[rank]) if self.by_text else parts[rank]
        examples = part.gather(rows)
        first, total = sum(map(len, parts[:rank])), len(units)
        if self.by_text:
            return Batch(examples["states"], examples["accept"], first=first, total=total)
        names = ("states", "accept", "evidence")
        batch = Batch(**{name: examples[name] for name in names}, first=first, total=total)
        if not self.embeds:
            return batch
        table = self.dataset.embedding
        copied = copied_embeddings(table, examples["copies"].long())
        return replace(batch, embedded=table[examples["tokens"]], copied=copied)

    def _train_batch(self, epoch: int, units: Tensor) -> Batch:
        return self._batch(self._part(epoch), units)

    def _validation_batch(self, epoch: int, units: Tensor) -> Batch:
        return self._batch(self.validation, units)

    def val_dataloader(self) -> ResumableLoader[Batch]:
        rows, settings = sum(self._validation_blocks(0)), self.settings
        return ResumableLoader(
            rows, settings.batch_size, settings.seed, self._validation_batch, shuffle=False,
            blocks=self._validation_blocks,
        )  # fmt: skip
