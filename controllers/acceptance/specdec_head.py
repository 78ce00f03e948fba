"""The acceptance head of SpecDec++ (Huang et al. 2024, §3.2 and Appendix).

The head computes â_i from the hidden state at y_i, which exists only after the forward that proposes y_{i+1}. The
current token has no prediction yet: the lag is 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.errors import InputError
from ...common.options import Count, LearningRate, Positive
from .. import MAX_DEPTH
from ..checkpoints.config import WIDEST, ControllerConfig, check_range
from ..sampling import SamplingParams
from ..training_options import COSINE, MIXED, Depth, MixingOptions, Predictor, PredictorTrainingOptions
from .calibration import UNCALIBRATED, Calibration, undo_weights
from .ngram_index import NgramMatch
from .predictor import TrainedPredictor, check_states
from .step import DraftSignals, Step
from .training import Batch, DataSummary, Examples, Origin, Parts, network_logits

if TYPE_CHECKING:
    from .metrics import Metrics


UNKNOWN_MEAN = 0.5  # mean acceptance for checkpoints that do not record it
PAPER_THRESHOLD = 0.7
UNWEIGHTED = ("kl", "brier", "ece")  # metrics that are also reported with the loss weights undone


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(PredictorTrainingOptions, MixingOptions):
    """Acceptance head. Defaults are those of SpecDec++ (Huang et al. 2024, §4.1 and Appendix C.1).

    Attributes:
        depth: Residual blocks D of the head; 0 is a linear head.
        w_acc: Loss weight of acceptance.
        w_rej: Loss weight of rejection.
    """

    context = MIXED
    by_text = True
    schedule = COSINE

    predictor: Predictor = "specdec"
    depth: Depth = 3
    w_acc: Positive = 1.0
    w_rej: Positive = 6.0
    batch_size: Count = 32
    lr: LearningRate = 5e-5


@dataclass(frozen=True, kw_only=True)
class Config(ControllerConfig):
    """The configuration of an acceptance head.

    Attributes:
        hidden_size: the draft's hidden size d.
        depth: number of residual blocks D.
        w_acc: loss weight of acceptance.
        w_rej: loss weight of rejection.
        mixing: share of target tokens in the training sequences.
        threshold: drafting stops when the probability of a rejection so far exceeds this threshold.
        threshold_source: description of the choice of the threshold.
    """

    kind = "acceptance-head"
    title = "Acceptance head"
    summary = (
        "Reads the last hidden state of the draft model at a token it has drafted, and predicts the probability that "
        "the target model accepts that token (SpecDec++, Huang et al. 2024). Drafting stops when the probability "
        "that some token of the draft is rejected exceeds the threshold."
    )

    hidden_size: int
    depth: int
    w_acc: float
    w_rej: float
    mixing: float
    threshold: float
    threshold_source: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("hidden_size", self.hidden_size, 1, WIDEST)
        check_range("depth", self.depth, 0, MAX_DEPTH)
        check_range("threshold", self.threshold, 0, 1)
        check_range("mixing", self.mixing, 0, 1)
        for name, weight in (("w_acc", self.w_acc), ("w_rej", self.w_rej)):
            if not (weight > 0 and math.isfinite(weight)):
                raise InputError(f"{name}={weight}: must be a positive number")

    def module(self) -> AcceptanceHead:
        return AcceptanceHead(self.hidden_size, self.depth)

    def predictor(self, head: nn.Module, embedding: Tensor, device: torch.device, *, calibrated: bool) -> HeadPredictor:
        """Return the predictor with the weights of ``head``.

        Args:
            head: an :class:`AcceptanceHead`.
            embedding: (V, d) the draft's output embedding, whose width is the size of the draft's states.
            device: device of the predictor.
            calibrated: whether the predictor uses the checkpoint's calibration. Without one, it converts the head's
                output back to a probability, because the loss weights ``w_acc`` and ``w_rej`` bias the output:
                odds(a) = (w_rej / w_acc)·odds(â).

        Raises:
            InputError: the draft has states of another size.
        """
        assert isinstance(head, AcceptanceHead)
        check_states(self.hidden_size, embedding)
        calibration = None
        if calibrated:
            calibration = self.calibration or undo_weights(self.w_acc, self.w_rej)
        mean = self.metrics.get("mean_acceptance", UNKNOWN_MEAN)
        return HeadPredictor(head.to(device), calibration, mean, self.provenance.samplings)

    @property
    def default_threshold(self) -> float:
        return self.threshold

    def with_threshold(self, threshold: float) -> Config:
        return replace(self, threshold=threshold, threshold_source="given at export")

    def rows(self) -> dict[str, str]:
        return {
            "head": f"{self.depth} residual blocks of size {self.hidden_size} and a linear layer",
            "loss weights": f"acceptance {self.w_acc}, rejection {self.w_rej}",
            "target tokens mixed in": f"{self.mixing:.0%}",
            "threshold": f"{self.threshold} ({self.threshold_source})",
        }


class ResidualBlock(nn.Module):
    """Computes ``x + SiLU(W x + b)``, (..., d) → (..., d)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


class AcceptanceHead(nn.Module):
    """f: ℝ^d → ℝ: ``depth`` residual blocks, each with its own weights, then one linear layer to a logit.

    The input is the draft's last hidden state (after the final norm) at a drafted token. ``sigmoid`` of the output is
    the probability that the target accepts this token if it accepts all tokens before it. ``depth=0`` is a linear head.

    Raises:
        InputError: a size is too small.
    """

    def __init__(self, hidden_size: int, depth: int = 3) -> None:
        super().__init__()
        if hidden_size < 1:
            raise InputError(f"hidden_size={hidden_size}: must be at least 1 (the draft's hidden size)")
        if depth < 0:
            raise InputError(f"depth={depth}: must be 0 (a linear head) or more")
        self.hidden_size, self.depth = hidden_size, depth
        self.blocks = nn.Sequential(*(ResidualBlock(hidden_size) for _ in range(depth)))
        self.out = nn.Linear(hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits (...) of acceptance for hidden states (..., d)."""
        return self.out(self.blocks(hidden)).squeeze(-1)  # type: ignore[no-any-return]

    @torch.no_grad()
    def probability(self, hidden: Tensor) -> Tensor:
        """Return â = sigmoid(f(hidden)), (..., d) → (...), in the head's precision."""
        return torch.sigmoid(self(hidden.to(self.out.weight.dtype)))


def new_network(options: TrainingOptions, data: DataSummary, parts: Parts) -> AcceptanceHead:
    """Return a head with random weights."""
    return AcceptanceHead(data.hidden_size, options.depth)


def inputs(examples: Examples, options: TrainingOptions) -> tuple[Tensor, ...]:
    """Return the draft's states at the tokens."""
    return (examples.states,)


def weighted_sums(logits: Tensor, p: Tensor, w_acc: float, w_rej: float) -> tuple[Tensor, Tensor]:
    """Return ``Σ -w_acc·P·log â - w_rej·(1-P)·log(1-â)`` and ``Σ w_acc·P + w_rej·(1-P)``, whose ratio is the loss.

    This is the loss of §3.3. The division by the sum of weights, instead of the number of tokens, makes the step size
    independent of w_rej.

    Args:
        logits: (m,) logits, m ≥ 0.
        p: (m,) acceptance probabilities P.
        w_acc, w_rej: the loss weights.
    """
    accept, reject = w_acc * p, w_rej * (1 - p)
    return -(accept * F.logsigmoid(logits) + reject * F.logsigmoid(-logits)).sum(), (accept + reject).sum()


def loss(network: AcceptanceHead, batch: Batch, options: TrainingOptions) -> tuple[Tensor, Tensor]:
    """Return the weighted binary cross-entropy with the acceptance probabilities (§3.3), see :func:`weighted_sums`."""
    return weighted_sums(network_logits(network, batch), batch.labels, options.w_acc, options.w_rej)


def predictions(network: AcceptanceHead, batch: Batch, options: TrainingOptions) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the labels, and the head's logits as they are and with the loss weights undone."""
    logits = network_logits(network, batch)
    return batch.labels, {"head": logits, "unweighted": logits + undo_weights(options.w_acc, options.w_rej).shift}


def metrics(judged: Mapping[str, Metrics], options: TrainingOptions) -> dict[str, float]:
    """Return the loss, the metrics of the head's output, and those with undone loss weights, as ``…_unweighted``."""
    head, unweighted = judged["head"], judged["unweighted"].compute()
    total, weight = weighted_sums(head.logits, head.p, options.w_acc, options.w_rej)
    return {
        "loss": float(total / weight), **head.compute(),
        **{f"{name}_unweighted": unweighted[name] for name in UNWEIGHTED},
    }  # fmt: skip


def to_checkpoint(options: TrainingOptions, data: DataSummary, origin: Origin) -> Config:
    """Return the configuration of a trained head."""
    assert options.mixing is not None, "resolved before training"
    return Config(
        **vars(origin), hidden_size=data.hidden_size, depth=options.depth, w_acc=options.w_acc, w_rej=options.w_rej,
        mixing=options.mixing, threshold=PAPER_THRESHOLD, threshold_source="paper default",
    )  # fmt: skip


class HeadPredictor(TrainedPredictor):
    """Predicts acceptance with a head and a calibration.

    Args:
        head: the head; its current weights are copied.
        calibration: maps logits to probabilities. Default: the sigmoid.
        mean: mean acceptance in the training data.
        samplings: sampling parameters of the training data; empty if they are not known.
    """

    lag = 1

    def __init__(
        self,
        head: AcceptanceHead,
        calibration: Calibration | None = None,
        mean: float = 0.5,
        samplings: tuple[SamplingParams, ...] = (),
    ) -> None:
        self.calibration = calibration or UNCALIBRATED
        self.mean, self.samplings = mean, samplings
        # Plain tensors, because for a single state the calls of modules take longer than the computation.
        linear = [block.linear for block in head.blocks if isinstance(block, ResidualBlock)]
        self.blocks = [(layer.weight.detach(), layer.bias.detach()) for layer in linear]
        self.out = head.out.weight.detach(), head.out.bias.detach()

    def state_values(self, hidden: Tensor) -> Tensor:
        """Return the logits (…, 1) for states (…, d)."""
        x = hidden.to(self.out[0])
        for weight, bias in self.blocks:
            x = x + F.silu(F.linear(x, weight, bias))
        return F.linear(x, *self.out)

    def predict(self, step: Step) -> float:
        return self.probability(step.hidden) if step.state_values is None else self.calibration(step.state_values[0])

    @torch.inference_mode()
    def predict_all(
        self, signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], hidden: Tensor, tokens: Sequence[int]
    ) -> list[float]:
        return [self.calibration(logit) for logit in self.state_values(hidden).flatten().tolist()]

    def probability(self, hidden: Tensor) -> float:
        """Return the calibrated acceptance probability for one state (d,)."""
        return self.calibration(float(self.state_values(hidden)))
