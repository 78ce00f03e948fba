"""The Lightning module of all predictors: batches, validation, and the choice of the best epoch.

The module of each predictor in ``controllers/acceptance/`` has the parts that differ. Epochs are compared by replay
over traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
from torch import Tensor

from ..controllers.acceptance.metrics import Metrics
from ..controllers.acceptance.training import Batch, DataSummary, Origin
from ..controllers.length import MAX_DRAFT, LengthController, RateOptimal
from ..controllers.length.cost_model import CostModel
from ..controllers.registry import controller_module
from ..controllers.training_options import COSINE
from ..data_gen.feature_shards import TRACES, FeatureDataset
from ..simulate.replay import PrecomputedPredictor, replay
from ..simulate.trace import Trace, from_tensors
from .best_epoch import BestEpoch
from .modules import cosine, finish_validation, gathered, optimizers, require_finite, seeded, total, training_loss

PAPER_COST = CostModel(0.21, 1.0, 0.0)  # SpecDec++'s pair: t_draft / t_verify


class PredictorData(Protocol):
    """The interface of data modules for the Lightning module."""

    @property
    def summary(self) -> DataSummary: ...

    @property
    def total_steps(self) -> int: ...

    def training_parts(self) -> Iterator[Any]:
        """Yield the training examples of the first epoch, part by part."""


class PredictorModule(pl.LightningModule):
    """A predictor in training. Without traces, the best epoch has the lowest validation KL divergence.

    Args:
        name: the predictor's name in the registry of controllers, or a user's ``package.module:Config``.
        settings: the predictor's ``TrainingOptions``.
        data: the training data.
        traces: the features whose traces are replayed; None if there are none.
        origin: the origin of the checkpoint, for the predictor that is replayed.
    """

    validation: dict[str, float]

    def __init__(
        self, name: str, settings: Any, data: PredictorData, traces: FeatureDataset | None = None,
        origin: Origin | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.predictor_name, self.settings, self.steps = name, settings, data.total_steps
        self.summary, self.origin, self.features = data.summary, origin, traces
        self.head = seeded(settings.seed, lambda: self.kind.new_network(settings, data.summary, data.training_parts))
        self.traced = traces is not None and bool(traces.part(TRACES).shards)
        self.criterion = "simulated_speedup" if self.traced else "kl"
        cost = getattr(settings, "cost", None)  # a copy head has no traces, and no costs
        self.cost = PAPER_COST if cost is None else CostModel.load(cost)
        self.validation = {}

    @property
    def kind(self) -> Any:
        """The predictor's module, see :mod:`specpilot.controllers.acceptance`."""
        return controller_module(self.predictor_name)

    def configure_optimizers(self) -> Any:
        options = type(self.settings)
        schedule = {"schedule": partial(cosine, steps=self.steps)} if options.schedule == COSINE else {}
        return optimizers(self, self.steps, fitted=options.fitted, **schedule)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        seed = ((self.settings.seed << 32) + self.global_step) % 2**63
        return training_loss(self, *self.kind.loss(self.head, batch._replace(seed=seed), self.settings))

    def on_validation_epoch_start(self) -> None:
        self.rows: list[Tensor] = []  # labels and logits of K predictions (1 + K, n) of each batch

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        labels, predictions = self.kind.predictions(self.head, batch, self.settings)
        self.names = [*predictions]
        rows = torch.stack([labels, *predictions.values()])
        require_finite(self, "predictions are", rows)
        self.rows.append(rows.cpu())

    def on_validation_epoch_end(self) -> None:
        labels, *predictions = gathered(self, torch.cat(self.rows, -1))
        self.rows = []
        self.judged = {
            name: Metrics(logits, labels) for name, logits in zip(self.names, predictions, strict=True)
        }  # fmt: skip
        metrics = self.kind.metrics(self.judged, self.settings)
        finish_validation(self, metrics | ({"simulated_speedup": self.simulated_speedup()} if self.traced else {}))

    def add_findings(self, best: BestEpoch) -> BestEpoch:
        """Return ``best`` with the reliability table and the summary of the data for the checkpoint."""
        summary = self.summary
        return replace(
            best,
            reliability=self.judged["head"].reliability(),
            mean=summary.mean_acceptance,
            examples=summary.examples,
            hidden_size=summary.hidden_size,
        )

    def make_lengths(self) -> Callable[[Trace], LengthController]:
        """Return a function from a trace to its length controller, with the current weights on the CPU."""
        assert self.features is not None
        assert self.origin is not None
        cost = self.cost
        config = self.kind.to_checkpoint(self.settings, self.summary, self.origin)
        head, cpu = deepcopy(self.head).cpu(), torch.device("cpu")
        if (length := config.length_controller(head, cost)) is not None:
            return lambda trace: length
        predictor = config.predictor(head, self.features.embedding, cpu, calibrated=True)

        def make(trace: Trace) -> RateOptimal:
            predictions = predictor.predict_all(trace.signals, trace.ngram_matches, trace.states, trace.tokens)
            return RateOptimal(PrecomputedPredictor(predictor, predictions), cost)

        return make

    @torch.no_grad()
    def simulated_speedup(self) -> float:
        """Return the tokens per second over all traces, relative to autoregressive decoding."""
        assert self.features is not None
        make, stop_tokens = self.make_lengths(), frozenset(self.features.manifest.stop_tokens)
        cost = self.cost
        shards = self.features.part(TRACES).shards
        counted = torch.zeros(3 + MAX_DRAFT + 1, dtype=torch.int64)
        for shard in shards[self.trainer.global_rank :: self.trainer.world_size]:
            trace = from_tensors(shard.tensors)
            stats = replay(trace, make(trace), stop_tokens)
            counts = [stats.n_draft_forwards, stats.n_target_forwards, stats.n_generated, *stats.rounds]
            counted += torch.tensor(counts)
        drafted, targeted, generated, *rounds = total(self, counted).tolist()
        # The prefill yields the first token of a text.
        seconds = cost.seconds(drafted, targeted - len(shards), sum(rounds[1:]), cost.deviation(rounds))
        return float((generated - len(shards)) * cost.round(0) / seconds)
