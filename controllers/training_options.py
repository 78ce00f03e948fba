"""Options of training controllers. This module imports no slow modules, so that ``--help`` is fast.

The options of a predictor are in the predictor's own file in ``controllers/acceptance/``, as ``TrainingOptions``: a
subclass of :class:`PredictorTrainingOptions`. ``train copies`` and ``train router`` are commands with options of their
own, which are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ..common.errors import InputError
from ..common.options import (
    LARGEST,
    Count,
    DeviceOptions,
    DType,
    Fraction,
    LearningRate,
    Limit,
    Natural,
    NotNegative,
    Options,
    Range,
    SeedOptions,
    Several,
    Share,
)
from . import MAX_DEPTH, MAX_DRAFT
from .registry import PREDICTORS, check_predictor

Depth = Annotated[int, Range(0, MAX_DEPTH)]
DraftLength = Annotated[int, Range(1, MAX_DRAFT)]
Devices = Annotated[int, Range(1, 1024)]
Dropout = Annotated[float, Range(0, 1, "[)")]


class PredictorName(Limit):
    """The name of a predictor: a name in the registry, or ``package.module:Config`` for a predictor of the user."""

    def check(self, value: Any) -> Any:
        """Return ``value``.

        Raises:
            Misspelt: ``value`` is not the name of a predictor.
        """
        check_predictor(value)
        return value


Predictor = Annotated[str, PredictorName()]
# Texts that the draft reads to compute features: the target's text with one drafted token at each position; texts mixed
# of target and draft tokens; or the target's text with whole drafts.
TARGET, MIXED, ROUNDS = "target", "mixed", "rounds"
ONE_CYCLE, COSINE = "one-cycle", "cosine"  # learning rate schedules


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """Data.

    The data of a training.

    Attributes:
        data: Folder written by `specpilot data …`, or several with the same models and sampling, as "[A,B]".
    """

    data: Annotated[str | tuple[str, ...], Several()]

    @property
    def folders(self) -> tuple[Any, ...]:
        """The sources that ``data`` names; rows from Python are one source."""
        data: Any = self.data
        return data if isinstance(data, tuple) and type(data[0]) not in (dict, tuple, list) else (data,)


@dataclass(frozen=True, kw_only=True)
class ValidationOptions(Options):
    """Data.

    The part of the data that is held out of a training.

    Attributes:
        validation_fraction: Share of the prompts held out for validation, chosen by a hash of their id.
    """

    validation_fraction: Fraction = 0.1


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(DataOptions, ValidationOptions, SeedOptions, DeviceOptions):
    """Training.

    Options of every training.

    Attributes:
        epochs: Passes over the data.
        batch_size: Number of examples in a training step. An example is a text, a drafted token or a query, depending
            on the controller.
        lr: Highest learning rate.
        weight_decay: Decoupled weight decay; 0 is plain Adam.
        patience: Stop when the metric that chooses the best epoch has not improved for this number of epochs. The
            learning rate schedule has the length of all epochs, also if the training stops early.
        checkpoint_every: Steps between two checkpoints; there is also one at the end of each epoch.
        log_every: Steps between two rows of metrics.csv; there is also one at the end of each epoch.
        wandb: Weights & Biases project to log to, as PROJECT or TEAM/PROJECT. The run is logged offline if
            WANDB_API_KEY is not set or the server cannot be reached. `specpilot export` adds the checkpoint to the
            project's run.
        tensorboard: Write the metrics for TensorBoard too, in the run folder.
        threads: CPU threads per process; by default PyTorch's choice.
        devices: Number of devices of each machine to train on, one process each. Batches are split among them.
        num_nodes: Number of machines. Run the same command on each machine, with NODE_RANK, MASTER_ADDR and MASTER_PORT
            set. The data and the run folder must be on storage that all machines share.
        strategy: auto or ddp; several devices or machines always use ddp.
        precision: Precision of the computation; weights are float32.
    """

    epochs: Count = 3
    batch_size: Count = 16
    lr: LearningRate = 1e-3
    weight_decay: NotNegative = 0.0
    patience: Count | None = None
    checkpoint_every: Count = 100
    log_every: Count = 10
    wandb: str | None = None
    tensorboard: bool = False
    threads: Devices | None = None
    devices: Devices = 1
    num_nodes: Devices = 1
    strategy: Literal["auto", "ddp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"


@dataclass(frozen=True, kw_only=True)
class FeatureSourceOptions(DataOptions, ValidationOptions, DeviceOptions):
    """Features. The inputs of predictors, computed once with the models that the data was made with.

    Attributes:
        data: Folder written by `specpilot data acceptance`, `specpilot data on-policy` or `serve --log-rounds`; or
            several with the same models, as "[A,B]", which may differ in sampling. For the predictor specdec, the
            folders must be written by `specpilot data acceptance` and have the same sampling. `train acceptance` also
            takes a folder written by `specpilot data features`. From other data, it makes the features in the run
            folder.
        predictor: The predictor: {predictors}, or one of your own, as package.module:Config. lag-free and features use
            the same features. `train acceptance --predictor NAME --help` shows the further options and the defaults of
            a predictor.
        target: Target model, if it has moved since the data was made.
        draft: Draft model, if it has moved since the data was made.
        dtype: Precision of these models.
        texts: Maximum number of training texts per dataset.
        traced: Number of held-out texts on which decoding is simulated to choose the best epoch. With 0, the best epoch
            is that of the lowest KL divergence on the validation texts, and the target is not needed.
        max_length: Maximum tokens of prompt and response together; longer responses are cut.
        states: Precision of the draft's hidden states on disk.
    """

    data: Annotated[str | tuple[str, ...], Several()]
    predictor: Predictor = "lag-free"
    target: str | None = None
    draft: str | None = None
    dtype: DType = "float32"
    texts: Count | None = None
    traced: Natural = 100
    max_length: Annotated[int, Range(2, LARGEST)] = 2048
    states: Literal["float16", "float32"] = "float16"


FeatureSourceOptions.__doc__ = str(FeatureSourceOptions.__doc__).replace("{predictors}", ", ".join(PREDICTORS))


@dataclass(frozen=True, kw_only=True)
class MixingOptions(Options):
    """Features.

    The texts of features whose predictor reads a mixture of target and draft tokens (SpecDec++).

    Attributes:
        mixing: Share r of target tokens in the texts that the draft reads; the other tokens are the draft's and are the
            training examples. At 1 every draft token is an example, with the target's text as context. Default: 0.15 as
            in the paper, or 0.5 if the data's mean acceptance is below one half.
        mixings: Number of different mixings of the texts; training epochs use them in turn.
    """

    mixing: Share | None = None
    mixings: Count = 3


@dataclass(frozen=True, kw_only=True)
class PredictorTrainingOptions(FeatureSourceOptions, TrainingOptions):
    """Acceptance predictor. The base class of a predictor's ``TrainingOptions``.

    Attributes:
        cost: Costs for the simulation that chooses the best epoch by its tokens per second: a file of `specpilot bench
            cost --output`, or the time of a draft step in units of a verification. Default: 0.21, as in SpecDec++.
        context: the draft's context in the features: ``TARGET``, ``MIXED`` (with :class:`MixingOptions`) or ``ROUNDS``.
        by_text: whether the examples of a batch are texts; otherwise they are drafted tokens.
        schedule: learning rate schedule, ``ONE_CYCLE`` or ``COSINE``.
        fitted: ``new_network`` returns a network that is fitted to all examples; no step changes it.
    """

    context = TARGET
    by_text = False
    schedule = ONE_CYCLE
    fitted = False

    cost: str | float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        default = type(self).predictor
        if default != self.predictor and type(self) is not PredictorTrainingOptions:
            raise InputError(
                f"predictor={self.predictor!r}: the other options are those of {default!r}; train it by 'specpilot "
                f"train acceptance --predictor {self.predictor}'"
            )


@dataclass(frozen=True, kw_only=True)
class CopyTrainingOptions(TrainingOptions):
    """Copy head. The learning rate is the highest of a one-cycle schedule of AdamW.

    Options of ``specpilot train copies``.

    Attributes:
        data: Folder of the target's own texts, written by `specpilot data answers`, acceptance or on-policy; or several
            of the same target, as "[A,B]". They may differ in sampling.
        target: Target model, if it has moved since the data was made. Only its embedding is kept in memory.
        width: Hidden units of the head.
        dropout: Dropout on the embeddings.
        batch_size: Copied tokens per step.
    """

    schedule = ONE_CYCLE
    fitted = False

    data: Annotated[str | tuple[str, ...], Several()]
    target: str | None = None
    width: Count = 32
    dropout: Dropout = 0.2
    batch_size: Count = 256
    lr: LearningRate = 3e-3
    weight_decay: NotNegative = 1e-2


@dataclass(frozen=True, kw_only=True)
class RouterTrainingOptions(TrainingOptions):
    """Router. Defaults are those of assistant selection (Huang et al. 2024, §3.1 and Table 9).

    Options of ``specpilot train router``.

    Attributes:
        reward: rouge (the paper's proxy, eq. 2), or throughput (the speed-up over decoding without drafts that the cost
            model expects from an arm's acceptance probabilities along the target's output).
        alpha: With rouge: weight of alignment; the cost has weight 1 - alpha.
        cost: With rouge: parameters (A.5: c = 1 - e^P / e^P_max, P in billions) or time (c = 1 - t / t_max, measured).
        length: With throughput: draft length; null takes the best for each prompt and arm.
        standardize: Divide every entry of the embedding by its standard deviation over the training data; the exported
            policy includes the scaling in its first layer.
        width: Hidden size of the MLP.
        examples: Maximum number of training queries.
        gradient: sampled (REINFORCE, as in the paper) or exact (from all arms' rewards, which are known offline).
        baseline: Baseline subtracted from the reward: none, batch (mean over the batch's other queries) or query (mean
            over the arms).
        entropy: Weight of the policy's entropy in nats, to prevent early convergence.
    """

    reward: Literal["rouge", "throughput"] = "rouge"
    alpha: Share = 0.5
    cost: Literal["parameters", "time"] = "parameters"
    length: DraftLength | None = None
    standardize: bool = False
    width: Count = 512
    batch_size: Count = 64
    weight_decay: NotNegative = 1e-2
    examples: Count | None = None
    gradient: Literal["sampled", "exact"] = "sampled"
    baseline: Literal["none", "batch", "query"] = "none"
    entropy: NotNegative = 0.0
