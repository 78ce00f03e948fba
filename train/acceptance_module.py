"""Base of acceptance predictors in training: validation, and the choice of the best epoch by replay over traces."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ..controllers.acceptance.predictor import TrainedPredictor
from ..controllers.length import RateOptimal
from ..controllers.length.cost_model import CostModel
from ..data_gen.feature_shards import TRACES, TRAIN, FeatureDataset
from ..infer.generation import Stats
from ..simulate.replay import PrecomputedPredictor, replay
from ..simulate.trace_shards import from_tensors
from .acceptance_data import Batch
from .controller_module import ControllerModule
from .options import PredictorTrainingOptions
from .streamed_metrics import StreamedMetrics

PAPER_COST = CostModel(0.21, 1.0, 0.0)  # SpecDec++'s pair: t_draft / t_verify


class AcceptanceModule(ControllerModule):
    """An acceptance predictor in training. The best epoch is the one of highest simulated speed on the traces.

    Args:
        steps: number of steps of the whole training.

    Attributes:
        seen: metrics accumulated over the validation examples; the first are those of the unchanged output.
    """

    def __init__(self, settings: PredictorTrainingOptions, dataset: FeatureDataset, steps: int) -> None:
        super().__init__(settings)
        self.dataset, self.steps = dataset, steps
        self.mean: float = dataset.manifest["mean_acceptance"]
        self.cost = PAPER_COST if settings.cost is None else CostModel.load(settings.cost)
        self.traced = bool(dataset.part(TRACES).shards)
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
