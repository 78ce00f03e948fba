"""Base of acceptance predictors in training: batches of features, validation, and the choice of the best epoch.

Features are read from memory-mapped shards; epochs are compared by replay over traces.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..controllers.acceptance.lag_free_head import INPUTS
from ..controllers.acceptance.predictor import TrainedPredictor
from ..controllers.length import LengthController, RateOptimal
from ..controllers.length.cost_model import CostModel
from ..data_gen.draft_states import Examples
from ..data_gen.feature_shards import TRACES, TRAIN, VALIDATION, FeatureDataset, Part
from ..infer.core import Stats
from ..simulate.replay import PrecomputedPredictor, replay
from ..simulate.trace import Trace, from_tensors
from .controller_module import Batch, PredictorModule
from .data_module import ResumableData
from .options import PredictorTrainingOptions


class AcceptanceDataModule(ResumableData[Part, Batch]):
    """Training and validation batches of a feature dataset.

    A batch is split over the processes.

    Args:
        kind: the predictor, whose head's inputs they have.
    """

    settings: PredictorTrainingOptions

    def __init__(self, dataset: FeatureDataset, settings: PredictorTrainingOptions, kind: type[ReplayedModule]) -> None:
        self.dataset, self.kind = dataset, kind
        parts = [dataset.part(f"{TRAIN}{i}") for i in range(dataset.training_parts)]
        super().__init__(settings, parts, dataset.part(VALIDATION))

    def evidence_moments(self) -> tuple[Tensor, Tensor]:
        """(7,) mean and standard deviation of the training examples' evidence."""
        count, total = 0, torch.zeros(INPUTS, dtype=torch.float64)
        squares = torch.zeros(INPUTS, dtype=torch.float64)
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
        return examples.texts if self.kind.by_text else examples.rows

    def batch(self, examples: Part, rows: Tensor, epoch: int | None) -> Batch:
        mine, first, total = self.share(rows)
        found = examples.gather(examples.rows_of_texts(mine) if self.kind.by_text else mine)
        inputs = self.kind.inputs(self.settings, found, self.dataset.embedding)
        return Batch(inputs, self.kind.labels(found), first, total)


PAPER_COST = CostModel(0.21, 1.0, 0.0)  # SpecDec++'s pair: t_draft / t_verify


class ReplayedModule(PredictorModule):
    """What decides the length of drafts in training. The best epoch is that of highest simulated speed on the traces.

    Attributes:
        by_text: a batch has ``batch_size`` rollouts; otherwise so many drafted tokens.
    """

    by_text: ClassVar[bool] = False

    def __init__(self, settings: PredictorTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data.total_steps)
        self.dataset = data.dataset
        self.mean: float = self.dataset.manifest["mean_acceptance"]
        self.cost = PAPER_COST if settings.cost is None else CostModel.load(settings.cost)
        self.traced = bool(self.dataset.part(TRACES).shards)
        self.criterion = "simulated_speedup" if self.traced else "kl"

    @staticmethod
    @abstractmethod
    def inputs(settings: Any, examples: Examples, embedding: Tensor) -> Sequence[Tensor]:
        """The head's inputs (M, …) for M ``examples``.

        Args:
            settings: settings of the training.
            embedding: (V, d) the draft's output embedding, memory-mapped.
        """

    @staticmethod
    def labels(examples: Examples) -> Tensor:
        """What became of the M ``examples``, (M, …)."""
        return examples["accept"]

    @abstractmethod
    def controllers(self) -> Callable[[Trace], LengthController]:
        """Makes the length controller, with the current weights, that a trace is replayed with on the CPU."""

    def findings(self) -> dict[str, Any]:
        """The reliability table, and statistics of the data for the checkpoint."""
        examples, hidden_size = sum(self.dataset.part(f"{TRAIN}0").rows), self.dataset.manifest["hidden_size"]
        return super().findings() | {"mean": self.mean, "examples": examples, "hidden_size": hidden_size}

    def measure(self) -> dict[str, float]:
        return super().measure() | ({"simulated_speedup": self.simulated_speedup()} if self.traced else {})

    @torch.no_grad()
    def simulated_speedup(self) -> float:
        """Tokens/s over the traces, relative to autoregressive decoding."""
        make, stop_tokens = self.controllers(), frozenset(self.dataset.manifest["stop_tokens"])
        counted, shards = Stats(), self.dataset.part(TRACES).shards
        for shard in shards[self.trainer.global_rank :: self.trainer.world_size]:
            trace = from_tensors(shard.tensors)
            counted += replay(trace, make(trace), stop_tokens)
        counts = [counted.n_draft_forwards, counted.n_target_forwards, counted.n_generated]
        drafted, targeted, generated = self.total(torch.tensor(counts)).tolist()
        seconds = self.cost.seconds(drafted, targeted - len(shards))  # the first token of a text is the prefill's
        return float((generated - len(shards)) * self.cost.round(0) / seconds)


class AcceptanceModule(ReplayedModule):
    """An acceptance predictor in training, whose traces are replayed by rate-optimal stopping."""

    @abstractmethod
    def predictor(self) -> TrainedPredictor:
        """A predictor with the current weights, on the CPU."""

    def controllers(self) -> Callable[[Trace], LengthController]:
        predictor = self.predictor()

        def make(trace: Trace) -> RateOptimal:
            predictions = predictor.predict_all(trace.signals, trace.ngram_matches, trace.states, trace.tokens)
            return RateOptimal(PrecomputedPredictor(predictor, predictions), self.cost)

        return make

    def predictions(self, batch: Batch) -> tuple[Tensor, ...]:
        """Of the head, and of the draft's confidence; log q(y) must be the first column of the first input."""
        confidence = batch.inputs[0][:, 0].float().clamp(max=-1e-7)  # log q(y)
        return self.logits(batch), confidence - torch.log(-torch.expm1(confidence))

    def metrics(self) -> dict[str, float]:
        """Those of the head, and the AUROC of the draft's own confidence."""
        found, own = self.found
        return found.compute() | {"auroc_draft": own.auroc()}
