"""Options of training, calibration and export."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from ..common.errors import InputError
from ..common.options import (
    LARGEST,
    Choice,
    Count,
    File,
    Folder,
    Fraction,
    LearningRate,
    Natural,
    NotNegative,
    Objects,
    Options,
    OverwriteOptions,
    Positive,
    Range,
    Seed,
    SeedOptions,
    Several,
    Share,
)
from ..controllers import MAX_DEPTH, MAX_DRAFT
from ..data_gen.options import TextFormOptions
from ..infer.options import DeviceOptions, DType, LoadingOptions, PlacementOptions, TargetOptions

Depth = Annotated[int, Range(0, MAX_DEPTH)]
DraftLength = Annotated[int, Range(1, MAX_DRAFT)]
Devices = Annotated[int, Range(1, 1024)]
# What the draft reads for features: the target's text and one drafted token, mixed texts, or the text and whole drafts.
TARGET, MIXED, ROUNDS = "target", "mixed", "rounds"
Dropout = Annotated[float, Range(0, 1, "[)")]


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """Data.

    Attributes:
        data: Folder written by `specpilot data …`, or several with the same models and sampling, as "[A,B]".
    """

    data: Annotated[str | tuple[str, ...], Several()]

    @property
    def folders(self) -> tuple[Any, ...]:
        """What is named; rows from Python are one source."""
        given: Any = self.data
        return given if isinstance(given, tuple) and type(given[0]) not in (dict, tuple, list) else (given,)


@dataclass(frozen=True, kw_only=True)
class ValidationOptions(Options):
    """Data.

    Attributes:
        validation_fraction: Share of the prompts held out for validation, chosen by a hash of their id.
    """

    validation_fraction: Fraction = 0.1


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(DataOptions, ValidationOptions, SeedOptions, DeviceOptions):
    """Training.

    Attributes:
        epochs: Passes over the data.
        batch_size: Examples per step: rollouts, drafted tokens or queries.
        lr: Highest learning rate.
        weight_decay: Decoupled weight decay; 0 is plain Adam.
        patience: Stop when the metric that chooses the best epoch has not improved for so many epochs. Learning
            rates are those of a training of all epochs.
        checkpoint_every: Steps between two checkpoints; there is also one at the end of each epoch.
        log_every: Steps between two rows of metrics.csv; there is also one at the end of each epoch.
        wandb: Weights & Biases project to log to; offline if WANDB_API_KEY is not set. `export` adds the checkpoint.
        tensorboard: Write the metrics for TensorBoard too, in the run folder.
        threads: CPU threads per process; by default PyTorch's choice.
        devices: Number of devices of each machine to train on, one process each. Batches are split among them.
        num_nodes: Number of machines. The same command is run on each, with NODE_RANK, MASTER_ADDR and MASTER_PORT set,
            and the data and the run folder on storage that all of them see.
        strategy: auto or ddp; several devices or machines always use ddp.
        precision: Precision of the computation; weights are float32.
    """

    module = ""  # the file in this folder and the class that trains it, and makes its checkpoint
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
        data: Folder written by `specpilot data acceptance` or, except for the predictor specdec, `specpilot data
            on-policy` or `serve --log-rounds`; or several with the same models, as "[A,B]". They may differ in
            sampling, again except for specdec. `train acceptance` also takes a folder written by `specpilot data
            features`; from other data it makes the features in the run folder.
        predictor: The predictor: lag-free, specdec, features or length-head. lag-free and features use the same
            features; for length-head both models read the texts. `train acceptance` has further options for each:
            `--predictor NAME --help`.
        target: Target model, if it has moved since the data was made.
        draft: Draft model, if it has moved since the data was made.
        dtype: Precision of these models.
        texts: Maximum number of training texts per dataset.
        traced: Number of held-out texts on which decoding is simulated to choose the best epoch. With 0 it is the epoch
            of lowest validation KL, and the target is not needed.
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


@dataclass(frozen=True, kw_only=True)
class MixingOptions(Options):
    """Features.

    Attributes:
        mixing: Share r of target tokens in the texts that the draft reads; the other tokens are the draft's and are the
            training examples. At 1 every draft token is an example, with the target's text as context. Default: 0.15 as
            in the paper, or 0.5 if the data's mean acceptance is below one half.
        mixings: Number of different mixings of the texts; training epochs use them in turn.
    """

    mixing: Share | None = None
    mixings: Count = 3


@dataclass(frozen=True, kw_only=True)
class FeatureDataOptions(FeatureSourceOptions, MixingOptions, PlacementOptions, SeedOptions):
    """Feature dataset.

    Attributes:
        seed: Seed of the mixing.
    """

    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context != MIXED:
            self.refuse_ignored(("mixing", "mixings", "seed"), f"predictor={self.predictor} mixes no texts")

    @property
    def context(self) -> str:
        """What the draft reads, see ``PredictorTrainingOptions.context``."""
        return PREDICTORS[self.predictor].context


@dataclass(frozen=True, kw_only=True)
class PredictorTrainingOptions(FeatureSourceOptions, TrainingOptions):
    """Acceptance predictor.

    Attributes:
        cost: Costs for the simulated tokens/s by which epochs are compared: a file of `specpilot bench cost --output`,
            or the time of a draft step in units of a verification. Default: 0.21, as in SpecDec++.
    """

    context = TARGET  # of its features
    cost: str | float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        own = type(self).predictor
        if self.predictor != own:
            raise InputError(
                f"predictor={self.predictor!r}: the other options are those of {own!r}; train it by 'specpilot train "
                f"acceptance --predictor {self.predictor}'"
            )

    @property
    def features(self) -> FeatureDataOptions:
        """The features to make, if ``data`` holds none."""
        names = {entry.name for entry in fields(FeatureDataOptions)} & {entry.name for entry in fields(self)}
        if self.context != MIXED:
            names.remove("seed")
        return FeatureDataOptions(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class SpecDecTrainingOptions(PredictorTrainingOptions, MixingOptions):
    """Acceptance head. Defaults are those of SpecDec++ (Huang et al. 2024, §4.1 and Appendix C.1).

    Attributes:
        depth: Residual blocks D of the head; 0 is a linear head.
        w_acc: Loss weight of acceptance.
        w_rej: Loss weight of rejection.
    """

    context = MIXED
    module = "specdec_module.SpecDecModule"
    predictor: Predictor = "specdec"
    depth: Depth = 3
    w_acc: Positive = 1.0
    w_rej: Positive = 6.0
    batch_size: Count = 32
    lr: LearningRate = 5e-5


@dataclass(frozen=True, kw_only=True)
class LagFreeTrainingOptions(PredictorTrainingOptions):
    """Lag-free head. The learning rate is the highest of a one-cycle schedule of AdamW.

    Attributes:
        width: Hidden units of the head. A prediction takes about 0.3 µs for each.
        dropout: Dropout on the draft's state and the token's embedding; it helps on text of other domains than the
            training data.
        use_ngrams: Use features of n-gram matches in the text.
    """

    module = "lag_free_module.LagFreeModule"
    width: Count = 32
    dropout: Dropout = 0.3
    use_ngrams: bool = True
    epochs: Count = 4
    batch_size: Count = 512
    lr: LearningRate = 2e-3
    weight_decay: NotNegative = 0.05


@dataclass(frozen=True, kw_only=True)
class FeatureTrainingOptions(PredictorTrainingOptions):
    """Feature model with four parameters. Each epoch is a step of Newton's method, which has no learning rate."""

    module = "feature_model_module.FeatureModule"
    predictor: Predictor = "features"
    epochs: Count = 6
    batch_size: Count = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_ignored(("lr", "weight_decay"), "the feature model is fitted by Newton's method")


@dataclass(frozen=True, kw_only=True)
class LengthHeadTrainingOptions(PredictorTrainingOptions):
    """Length head. The learning rate is the highest of a one-cycle schedule of AdamW.

    Attributes:
        every: When it plans a draft's length: once a prompt, as BlockPilot, or every round.
        width: Hidden units of the head.
    """

    context = ROUNDS
    module = "length_head_module.LengthHeadModule"
    predictor: Predictor = "length-head"
    every: Literal["prompt", "round"] = "round"
    width: Count = 64
    epochs: Count = 4
    lr: LearningRate = 2e-3
    weight_decay: NotNegative = 0.05


PREDICTORS: dict[str, type[PredictorTrainingOptions]] = {
    kind.predictor: kind
    for kind in (LagFreeTrainingOptions, SpecDecTrainingOptions, FeatureTrainingOptions, LengthHeadTrainingOptions)
}
Predictor = Annotated[str, Choice(tuple(PREDICTORS))]


@dataclass(frozen=True, kw_only=True)
class CopyTrainingOptions(TrainingOptions):
    """Copy head. The learning rate is the highest of a one-cycle schedule of AdamW.

    Attributes:
        data: Folder of the target's own texts, written by `specpilot data answers`, acceptance or on-policy; or several
            of the same target, as "[A,B]". They may differ in sampling.
        target: Target model, if it has moved since the data was made. Only its embedding is kept in memory.
        width: Hidden units of the head.
        dropout: Dropout on the embeddings.
        batch_size: Copied tokens per step.
    """

    module = "copies.CopyModule"
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

    Attributes:
        reward: rouge (the paper's proxy, eq. 2), or throughput (tokens per second that the cost model expects from an
            arm's acceptance rates along the target's output, relative to the target alone).
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

    module = "router.RouterModule"
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


CONTROLLERS: dict[str, type[TrainingOptions]] = PREDICTORS | {
    "copies": CopyTrainingOptions, "router": RouterTrainingOptions
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TextOptions(TextFormOptions, DataOptions):
    """Data.

    Attributes:
        data: Text: a JSON Lines, CSV, Parquet or text file, a folder of such, or a hub dataset, of prompts and answers
            or conversations; or the target's own answers, a folder written by `specpilot data answers`, acceptance or
            on-policy. Or several, as "[A,B]".
    """

    data: Annotated[str | tuple[str, ...], Several(), Objects()]


@dataclass(frozen=True, kw_only=True)
class DraftTrainingOptions(TargetOptions, LoadingOptions, TextOptions, TrainingOptions):
    """Draft. Without an initial one it is made of the target's layers, and its embedding is the target's.

    Attributes:
        initial: Draft to begin with instead: one of `train draft`, or any model with the target's tokenizer and number
            of tokens. Layers, vocabulary, output and features are then its own.
        features: target: the draft also reads the target's last hidden state at the position before, and its own at
            drafted positions (EAGLE).
        positions: With features: number of drafted positions that are trained, from the second on with the draft's own
            states.
        layers: Layers of the target that the draft begins with: a number, of which one is the last and the others are
            the first ones; or their indices, as "[0,1,29]". Default: 3, or 1 with features.
        vocabulary: Number of tokens that the draft can propose, the most frequent ones of the data; null for all.
        own_output: Train an output projection of the draft's own, instead of using the target's.
        window: Tokens of text that are read together.
        batch_size: Windows per step.
        dtype: Precision of the target; the draft is trained in float32.
        cache_states: Run the target once before the first epoch, and keep its last hidden states in the run folder
            until the run is complete, so that every epoch needs only the draft. They take 2 bytes × the target's hidden
            size for every token of the data.
    """

    initial: str | None = None
    features: Literal["target"] | None = None
    positions: Annotated[int, Range(1, 8)] = 3
    layers: Natural | Annotated[tuple[Natural, ...], Several()] | None = None
    vocabulary: Count | None = 8192
    own_output: bool = False
    window: Annotated[int, Range(2, LARGEST)] = 256
    epochs: Count = 1
    batch_size: Count = 4
    dtype: DType = "float32"
    cache_states: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial is not None:
            self.refuse_ignored(("features", "layers", "vocabulary", "own_output"), "the initial draft has its own")
        elif self.features is None:
            self.refuse_ignored(("positions",), "only drafts with --features target are trained by positions")
        if self.cache_states and self.num_nodes > 1:
            raise InputError("cache_states: one machine makes and reads the states; leave it out or take num_nodes=1")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Output.

    Attributes:
        output: Run folder for resolved settings, metrics and checkpoints.
        resume: Continue the unfinished run in the folder, or train a finished one further, to a larger --epochs.
    """

    output: Folder
    resume: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportOptions(OverwriteOptions):
    """Export.

    Attributes:
        run: Run folder of `specpilot train`; or a controller checkpoint, which is rewritten in the current format.
        output: Folder of the checkpoint: config.json, model.safetensors, README.md.
        threshold: Default stopping threshold h of an acceptance head. Default: 0.7, as in the paper.
        push_to: Hub repository (owner/name) to upload the checkpoint to.
        private: Make that repository private if it is new.
    """

    run: Path = field(kw_only=False)
    output: Folder = field(kw_only=False)
    threshold: Share | None = None
    push_to: str | None = None
    private: bool = True


@dataclass(frozen=True, kw_only=True)
class TrimOptions(TextOptions, OverwriteOptions):
    """Trimmed vocabulary.

    Attributes:
        draft: Draft model: a shipped model, a folder or a hub id.
        keep: Number of tokens that it can propose, the most frequent ones of the data.
        target: Its target, for a draft that has the target's embedding.
        output: Folder of the trimmed draft.
        trust_remote_code: Run code that comes with the model; only for sources you trust.
    """

    draft: str = field(kw_only=False)
    keep: Count = 8192
    target: str | None = None
    output: Folder
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(ValidationOptions, DeviceOptions, OverwriteOptions):
    """Calibration.

    Attributes:
        controller: Checkpoint: a folder, a hub id or a shipped name.
        data: Folder written by `specpilot data acceptance` for the same pair.
        output: Folder of the calibrated checkpoint.
        method: weights (undo the loss weights) or platt.
        draft: Draft model that the data was made with, if it has moved since.
        validation_fraction: Share of prompts that training held out, if the head was trained on this data.
        report: File for the JSON that is printed to standard output.
    """

    controller: str = field(kw_only=False)
    data: str
    output: Folder
    method: Literal["weights", "platt"] = "platt"
    draft: str | None = None
    validation_fraction: Fraction = 0.1
    report: File | None = None
