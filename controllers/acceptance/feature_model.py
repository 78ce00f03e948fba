"""A logistic model of acceptance on features of the draft's distribution: log q(y), log(1 - max q), the entropy of q.

The model has four parameters, reads no hidden states, and predicts the current token without lag. It is a controller,
and the baseline of acceptance heads. The position in the draft is not a feature: if all earlier tokens were accepted,
they follow the target's distribution at every position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...common.options import Count
from ..checkpoints.config import ControllerConfig, check_range
from ..sampling import SamplingParams
from ..training_options import Predictor, PredictorTrainingOptions
from .calibration import fit_logistic, sigmoid
from .ngram_index import NgramMatch
from .predictor import TrainedPredictor
from .step import DraftSignals, Step
from .training import (
    Batch,
    DataSummary,
    Examples,
    Origin,
    Parts,
    confidence_logits,
    cross_entropy,
    network_logits,
)

if TYPE_CHECKING:
    from .metrics import Metrics

FEATURES = 3  # log q(y), log(1 - max q), entropy
SMALLEST = 1e-4  # lower bound of 1 - max q; smaller values are mostly rounding


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(PredictorTrainingOptions):
    """Feature model with four parameters. scikit-learn fits it to all examples at once, without a learning rate."""

    fitted = True

    predictor: Predictor = "features"
    epochs: Count = 1
    batch_size: Count = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_ignored(("lr", "weight_decay"), "the feature model is fitted by scikit-learn")


@dataclass(frozen=True, kw_only=True)
class Config(ControllerConfig):
    """The configuration of a feature model.

    Attributes:
        mean: mean acceptance in the training data.
    """

    kind = "acceptance-features"
    title = "Feature model of acceptance"
    summary = (
        "Predicts, when a token is drawn from the draft model, the probability that the target model accepts it: "
        "logistic regression on log q(y), log(1 - max q) and the entropy of q. `cost.json` is what `specpilot bench "
        "cost --output cost.json` measures: drafting stops where a token no longer pays."
    )

    mean: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mean", self.mean, 0, 1)

    def module(self) -> FeatureModel:
        return FeatureModel()

    def predictor(
        self, head: nn.Module, embedding: Tensor, device: torch.device, *, calibrated: bool
    ) -> FeaturePredictor:
        assert isinstance(head, FeatureModel)
        return FeaturePredictor(head, self.mean, self.provenance.samplings)

    def rows(self) -> dict[str, str]:
        return {"mean acceptance": f"{self.mean:.3f}"}


def features(confidence: float, top: float, entropy: float) -> tuple[float, float, float]:
    """Return the model's inputs for q(y), max q and H(q) in nats.

    The logarithm of 1 - max q distinguishes 0.1 from 0.01.
    """
    return math.log(max(confidence, 1e-30)), math.log(max(1.0 - top, SMALLEST)), entropy


class FeatureModel(nn.Module):
    """``sigmoid(bias + confidence·log q(y) + doubt·log(1 - max q) + entropy·H(q))``; the arguments are coefficients."""

    def __init__(self, bias: float = 0.0, confidence: float = 0.0, doubt: float = 0.0, entropy: float = 0.0) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(bias))
        self.weight = nn.Parameter(torch.tensor([confidence, doubt, entropy]))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (…) of acceptance for :func:`features` (…, 3)."""
        return features @ self.weight + self.bias


def new_network(options: TrainingOptions, data: DataSummary, parts: Parts) -> FeatureModel:
    """Return the model that maximises the likelihood of all training examples."""
    x, accept = zip(*((examples.evidence[:, :FEATURES], examples.accept) for examples in parts()), strict=True)
    weight, bias = fit_logistic(torch.cat(x).double().numpy(), torch.cat(accept).double().numpy())
    return FeatureModel(bias, *weight.tolist())


def inputs(examples: Examples, options: TrainingOptions) -> tuple[Tensor, ...]:
    """Return the :func:`features` of the tokens."""
    return (examples.evidence[:, :FEATURES],)


def loss(network: FeatureModel, batch: Batch, options: TrainingOptions) -> tuple[Tensor, Tensor]:
    """Return the binary cross-entropy with the acceptance probabilities."""
    return cross_entropy(network_logits(network, batch), batch.labels)


def predictions(network: FeatureModel, batch: Batch, options: TrainingOptions) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the labels, and the logits of the model and of the draft's confidence."""
    return batch.labels, {
        "head": network_logits(network, batch), "draft": confidence_logits(batch.inputs[0][:, 0])
    }  # fmt: skip


def metrics(judged: Mapping[str, Metrics], options: TrainingOptions) -> dict[str, float]:
    """Return the metrics of the model, and the AUROC of the draft's confidence."""
    return judged["head"].compute() | {"auroc_draft": judged["draft"].auroc()}


def to_checkpoint(options: TrainingOptions, data: DataSummary, origin: Origin) -> Config:
    """Return the configuration of a trained model."""
    return Config(**vars(origin), mean=data.mean_acceptance)


class FeaturePredictor(TrainedPredictor):
    """Predicts acceptance with a feature model.

    Args:
        model: the model; its current coefficients are copied.
        mean: mean acceptance in the training data.
        samplings: sampling parameters of the training data; empty if they are not known.
    """

    lag = 0

    def __init__(self, model: FeatureModel, mean: float = 0.5, samplings: tuple[SamplingParams, ...] = ()) -> None:
        self.mean, self.samplings = mean, samplings
        self.bias: float = model.bias.item()
        self.confidence, self.doubt, self.entropy = model.weight.tolist()

    def predict(self, step: Step) -> float:
        return self.predict_signals(step.signals())

    def predict_all(
        self, signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], hidden: Tensor, tokens: Sequence[int]
    ) -> list[float]:
        return [*map(self.predict_signals, signals)]

    def predict_signals(self, signals: DraftSignals) -> float:
        """Return the prediction for a token with these draft signals."""
        x, y, z = features(*signals)
        return sigmoid(self.bias + self.confidence * x + self.doubt * y + self.entropy * z)
