"""Base of acceptance predictors in training: batches of features, validation, and the choice of the best epoch.

Features are read from memory-mapped shards; epochs are compared by replay over traces.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..controllers.acceptance.lag_free_head import copied_embeddings
from ..controllers.acceptance.predictor import TrainedPredictor
from ..controllers.length import RateOptimal
from ..controllers.length.cost_model import CostModel
from ..data_gen.feature_shards import TRACES, TRAIN, VALIDATION, FeatureDataset, Part
from ..infer.generation import Stats
from ..simulate.replay import PrecomputedPredictor, replay
from ..simulate.trace_shards import from_tensors
from .controller_module import ExportedModule
from .data_module import ResumableData
from .metrics import StreamedMetrics
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

    A batch is split over the processes.

    Args:
        by_text: a batch has ``batch_size`` rollouts; otherwise so many drafted tokens.
        embeds: examples have the embeddings of their tokens.
    """

    settings: PredictorTrainingOptions

    def __init__(
        self,
        dataset: FeatureDataset,
        settings: PredictorTrainingOptions,
        *,
        by_text: bool = False,
        embeds: bool = False,
    ) -> None:
        self.dataset = dataset
        self.by_text, self.embeds = by_text, embeds
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


PAPER_COST = CostModel(0.21, 1.0, 0.0)  # SpecDec++'s pair: t_draft / t_verify


class AcceptanceModule(ExportedModule):
    """An acceptance predictor in training. The best epoch is the one of highest simulated speed on the traces.

    Attributes:
        by_text, embeds: see :class:`AcceptanceDataModule`.
        seen: metrics accumulated over the validation examples; the first are those of the unchanged output.
    """

    by_text: ClassVar[bool] = False
    embeds: ClassVar[bool] = False

    def __init__(self, settings: PredictorTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings)
        self.dataset, self.steps = data.dataset, data.total_steps
        self.mean: float = self.dataset.manifest["mean_acceptance"]
        self.cost = PAPER_COST if settings.cost is None else CostModel.load(settings.cost)
        self.traced = bool(self.dataset.part(TRACES).shards)
        self.criterion = "simulated_speedup" if self.traced else "kl"
        self.seen = [StreamedMetrics()]

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """(M,) logits of acceptance."""

    @abstractmethod
    def predictor(self) -> TrainedPredictor:
        """A predictor with the current weights, on the CPU."""

    def score(self) -> float:
        return self.validation["simulated_speedup"] if self.traced else -self.validation["kl"]

    def findings(self) -> dict[str, Any]:
        """Statistics of the data for the checkpoint."""
        examples, hidden_size = sum(self.dataset.part(f"{TRAIN}0").rows), self.dataset.manifest["hidden_size"]
        return {"mean": self.mean, "examples": examples, "hidden_size": hidden_size}

    def metrics(self) -> dict[str, float]:
        """Metrics of the validation examples seen so far."""
        return self.seen[0].compute()

    def on_validation_epoch_start(self) -> None:
        # Not created earlier: spawned processes would share the memory of existing tensors.
        for metrics in self.seen:
            metrics.reset()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits = self.logits(batch).float()
        self.require_finite("predictions are", logits)
        self.seen[0].update(logits, batch.accept)

    def on_validation_epoch_end(self) -> None:
        for metrics in self.seen:
            metrics.reduce(self.total)
        self.validation = self.metrics()
        if self.traced:
            self.validation["simulated_speedup"] = self.simulated_speedup()
        value = self.validation[self.criterion]
        self.log(f"val_{self.criterion}", value, prog_bar=True, logger=False, sync_dist=True)

    @torch.no_grad()
    def simulated_speedup(self) -> float:
        """Tokens/s of rate-optimal stopping over the traces, relative to autoregressive decoding."""
        predictor, stop_tokens = self.predictor(), frozenset(self.dataset.manifest["stop_tokens"])
        counted, shards = Stats(), self.dataset.part(TRACES).shards
        for shard in shards[self.trainer.global_rank :: self.trainer.world_size]:
            trace = from_tensors(shard.tensors)
            predictions = predictor.predict_all(trace.signals, trace.ngram_matches, trace.states, trace.tokens)
            precomputed = PrecomputedPredictor(predictor, predictions)
            counted += replay(trace, RateOptimal(precomputed, self.cost), stop_tokens)
        counts = [counted.n_draft_forwards, counted.n_target_forwards, counted.n_generated]
        drafted, targeted, generated = self.total(torch.tensor(counts)).tolist()
        seconds = self.cost.seconds(drafted, targeted - len(shards))  # the first token of a text is the prefill's
        return float((generated - len(shards)) * self.cost.round(0) / seconds)
