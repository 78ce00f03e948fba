"""The options of every command: frozen dataclasses, importable in a moment.

The parameters of a command (``commands/``) are such classes; their fields are its flags, its ``--config`` keys and,
through the docstrings, its ``--help``. What several commands share is a base class. A field is documented once, in the
class that introduces it; a subclass may change its default. Limits belong to a field's type and hold for callers from
Python, too.

Every part of the package may import this module, and it imports nothing but ``InputError``. It is longer than other
files so that every option is found in one place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from .controllers.errors import InputError


@dataclass(frozen=True)
class Range:
    """Finite numbers from ``low`` to ``high``; ``ends`` says which of the two belong to it, as in [0, 1)."""

    low: float
    high: float = math.inf
    ends: str = "[]"

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, bool | str):
            return
        problem = None
        if not math.isfinite(value):
            problem = "a finite number"
        elif value < self.low or (value == self.low and self.ends[0] == "("):
            problem = f"{'at least' if self.ends[0] == '[' else 'above'} {self.low}"
        elif value > self.high or (value == self.high and self.ends[1] == ")"):
            problem = f"{'at most' if self.ends[1] == ']' else 'below'} {self.high}"
        if problem is not None:
            raise InputError(f"{name}={value}: must be {problem}")


@dataclass(frozen=True)
class Several:
    """A list of at least ``least`` values; none of them twice where they are ``distinct``."""

    least: int = 1
    distinct: bool = True

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, tuple) and (len(value) < self.least or (self.distinct and len(set(value)) < len(value))):
            least = "one value" if self.least == 1 else f"{self.least} values"
            raise InputError(f"{name}={list(value)}: give at least {least}{', and none twice' * self.distinct}")


@dataclass(frozen=True)
class Pattern:
    """Text in a certain form; ``remedy`` says which."""

    regex: str
    remedy: str

    def check(self, name: str, value: Any) -> None:
        if not re.fullmatch(self.regex, str(value)):
            raise InputError(f"{name}={str(value)!r}: {self.remedy}")


@dataclass(frozen=True)
class Place:
    """A folder or a file to write, which may be there already; looked at before anything is computed for it."""

    folder: bool

    def check(self, name: str, value: Any) -> None:
        path = Path(value)
        if not self.folder and path.exists() and not path.is_file():
            raise InputError(f"{name}={str(path)!r}: is a folder or a device; name a file")
        above = [path, *path.parents] if self.folder else path.parents
        there = next((place for place in above if place.exists()), None)
        if there is not None and not there.is_dir():
            raise InputError(f"{name}={str(path)!r}: {str(there)!r} is no folder; name another")


@dataclass(frozen=True)
class Choice:
    """One of some words, where the value is a word."""

    words: tuple[object, ...]

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, str) and value not in self.words:
            raise InputError(f"{name}={value!r}: choose one of {', '.join(map(str, self.words))}")


Limit = Range | Several | Pattern | Place | Choice
LARGEST = 2**31 - 1  # of a count
MAX_DEPTH = 64  # of a head that a checkpoint may hold
MAX_LENGTH = 20  # tokens a draft
Count = Annotated[int, Range(1, LARGEST)]
Natural = Annotated[int, Range(0, LARGEST)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Positive = Annotated[float, Range(0, ends="()")]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Fraction = Annotated[float, Range(0, 1, "()")]
LearningRate = Annotated[float, Range(0, 1, "(]")]
Depth = Annotated[int, Range(0, MAX_DEPTH)]
DType = Literal["float32", "bfloat16", "float16", "float64", "auto"]
Device = Annotated[
    str, Pattern(r"auto|(?!meta)[a-z]+(:\d{1,3})?", "no device of this machine; give 'auto', 'cpu', 'cuda' or 'cuda:1'")
]
File = Annotated[Path, Place(folder=False)]
Folder = Annotated[Path, Place(folder=True)]
Picture = Annotated[
    File, Pattern(r"(?i).+\.(png|pdf|svg|jpe?g|webp)", "no kind of picture; end it in .png, .pdf, .svg, .jpg or .webp")
]
Names = Annotated[tuple[str, ...], Several()]


def _limits(hint: Any) -> Iterator[Limit]:
    """The limits anywhere in a type: ``Count | None``, ``tuple[Count, ...]``."""
    if get_origin(hint) is Literal:
        yield Choice(get_args(hint))
        return
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
        hint = hint.__origin__
    for part in get_args(hint):
        yield from _limits(part)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class: makes tuples of lists, and checks every value against the limits in its field's type.

    Raises:
        InputError: a value is outside its limits; names it and says what is possible.
    """

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            if isinstance(value, list):  # from YAML or a flag
                value = tuple(value)
                object.__setattr__(self, name, value)
            for limit in _limits(hint):
                several = isinstance(value, tuple) and not isinstance(limit, Several)
                for one in value if several else (value,):
                    if one is not None:
                        limit.check(name, one)
            if value == "" or (isinstance(value, tuple) and "" in value):
                raise InputError(f"{name}: it is empty; give a value, or leave it out")

    def refuse_ignored(self, names: tuple[str, ...], reason: str) -> None:
        """Raises InputError if one of these fields has another value than its default."""
        for entry in fields(self):
            if entry.name in names and getattr(self, entry.name) != entry.default:
                raise InputError(
                    f"{entry.name}={getattr(self, entry.name)!r}: would be ignored, {reason}; leave it out"
                )


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Options):
    """Models.

    Attributes:
        target: Target model, whose distribution the text has: a shipped model, a folder, or a hub id.
    """

    target: str = "tiny"


@dataclass(frozen=True, kw_only=True)
class PairOptions(TargetOptions):
    """Models.

    Attributes:
        draft: Draft model, with the target's tokenizer: a shipped model, a folder, or a hub id.
    """

    draft: str = "tiny-draft"


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Models.

    Attributes:
        device: auto (an accelerator where there is one), cpu, cuda, cuda:1, …
    """

    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(DeviceOptions):
    """Models.

    Attributes:
        dtype: Precision of the models; auto is that of each checkpoint.
        trust_remote_code: Run code that comes with the models. Only for sources you trust.
    """

    dtype: DType = "float32"
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class SeedOptions(Options):
    """Sampling.

    Attributes:
        seed: Seed of every random number.
    """

    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class TruncationOptions(Options):
    """Sampling.

    Attributes:
        max_new_tokens: The most tokens of a text.
        top_k: Sample among the k most probable tokens; null keeps all.
        top_p: Sample among the most probable tokens of this total probability; 1 keeps all.
    """

    max_new_tokens: Count = 128
    top_k: Count | None = 50
    top_p: Annotated[float, Range(0, 1, "(]")] = 1.0


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(TruncationOptions):
    """Sampling.

    Attributes:
        temperature: Divides the logits of both models; 0 is greedy.
    """

    temperature: NotNegative = 1.0

    @property
    def sampling(self) -> dict[str, Any]:
        """Keywords of ``SpeculativeDecoder.generate``."""
        return {name: getattr(self, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p")}


BUILTIN = ("builtin", "builtin-large", "builtin-copy")


@dataclass(frozen=True, kw_only=True)
class PromptSourceOptions(Options):
    """Prompts.

    Attributes:
        prompts: builtin, builtin-large, builtin-copy, a JSON Lines, Parquet or text file, a folder of such files, or
            the id of a dataset on the hub.
        column: Column that holds the prompt; id and domain are read from columns of those names.
        split: Split of the built-in prompts (train, validation, test) or of a hub dataset; a file has none.
        domains: Take only the prompts of these domains.
        chat: Put prompts into the tokenizer's chat template; otherwise they are continued as plain text.
        system: System message of the chat.
    """

    prompts: str = "builtin"
    column: str = "prompt"
    split: str = "train"
    domains: Names | None = None
    chat: bool = True
    system: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.system is not None and not self.chat:
            raise InputError("system: is part of the chat template; leave it or chat=False (--no-chat) out")
        if self.prompts in BUILTIN:
            self.refuse_ignored(("column",), "the built-in prompts have no columns")
        elif self.local:
            self.refuse_ignored(("split", "train_split"), f"{self.prompts!r} is a file or folder and has no splits")

    @property
    def source(self) -> dict[str, Any]:
        """These fields, for other options on the same prompts."""
        return {entry.name: getattr(self, entry.name) for entry in fields(PromptSourceOptions)}

    @property
    def local(self) -> bool:
        """Whether the prompts are in a file or folder here, which has no splits."""
        return self.prompts not in BUILTIN and Path(self.prompts).expanduser().exists()


@dataclass(frozen=True, kw_only=True)
class PromptOptions(PromptSourceOptions):
    """Prompts.

    Attributes:
        limit: Take at most this many prompts.
        skip: Leave out this many prompts before them.
    """

    limit: Count | None = None
    skip: Natural = 0


@dataclass(frozen=True, kw_only=True)
class TrainSplitOptions(Options):
    """Prompts.

    Attributes:
        train_split: Split of the prompts that are trained on. Prompts that are held out to measure on are left out, so
            that it may be the same, as it is in a file.
    """

    train_split: str = "train"


@dataclass(frozen=True, kw_only=True)
class RepeatOptions(Options):
    """Measurement.

    Attributes:
        repeats: How often everything is timed, in turn; medians are reported.
    """

    repeats: Count = 3


@dataclass(frozen=True, kw_only=True)
class OutputFileOptions(Options):
    """Output.

    Attributes:
        output: File that gets the same JSON as standard output.
    """

    output: File | None = None


@dataclass(frozen=True, kw_only=True)
class StudyFolderOptions(OutputFileOptions):
    """Output.

    Attributes:
        folder: What is computed on the way; a run that was cut short is continued there.
    """

    folder: Folder = Path("runs/study")


# ---------------------------------------------------------------------------------------------------------- data


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(PromptOptions, SamplingOptions, LoadingOptions, SeedOptions):
    """Dataset. Every field that its rows depend on is part of its identity.

    Attributes:
        max_prompt_tokens: Leave longer prompts out; by default a prompt that fills the context is refused.
        batch_size: Prompts rolled out together.
        shard_size: Prompts a shard; also what a killed run may lose.
    """

    max_prompt_tokens: Count | None = None
    batch_size: Count = 64
    shard_size: Count = 256


@dataclass(frozen=True, kw_only=True)
class AcceptanceDataOptions(PairOptions, DatasetOptions):
    """Acceptance dataset."""


@dataclass(frozen=True, kw_only=True)
class OnPolicyDataOptions(AcceptanceDataOptions):
    """Dataset of the decoder's own rounds.

    Attributes:
        length: Length controller that drafts: a number, a rule, or a trained controller.
        threshold: Stopping threshold of a trained controller.
        cost: For a trained controller that stops by cost: a file of `specpilot bench cost --output`, or the time of a
            draft step in units of a verification, such as 0.2.
    """

    length: str = "8"
    threshold: Share | None = None
    cost: str | float | None = None


ARMS = ("tiny-draft", "tiny-draft-code-prose", "tiny-draft-math", "tiny-draft-sql-shell", "autoregressive")


@dataclass(frozen=True, kw_only=True)
class RouterDataOptions(TargetOptions, DatasetOptions):
    """Router's dataset.

    Attributes:
        arms: What is chosen between, in order: draft models, exit:LAYER (the target's first layers draft), ngram
            (copies of the text), and autoregressive (no draft).
    """

    arms: Annotated[tuple[str, ...], Several(2)] = ARMS
    max_new_tokens: Count = 64


@dataclass(frozen=True, kw_only=True)
class DatasetFolderOptions(Options):
    """Output.

    Attributes:
        output: Folder of the dataset: Parquet shards and a manifest. An unfinished one is continued.
    """

    output: Folder


@dataclass(frozen=True, kw_only=True)
class PlannedDatasetOptions(DatasetFolderOptions):
    """Output.

    Attributes:
        plan: Print what would be done, its size on disk and the time it would take; write nothing.
    """

    plan: bool = False


# ------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """Data.

    Attributes:
        data: Folder written by `specpilot data …`, or several, as "[A,B]", of the same models and sampling.
    """

    data: Annotated[str | tuple[str, ...], Several()]

    @property
    def folders(self) -> tuple[str, ...]:
        return (self.data,) if isinstance(self.data, str) else self.data


@dataclass(frozen=True, kw_only=True)
class ValidationOptions(Options):
    """Data.

    Attributes:
        validation_fraction: Share of the training prompts held out for validation, chosen by a hash of their id.
    """

    validation_fraction: Fraction = 0.1


@dataclass(frozen=True, kw_only=True)
class FittingOptions(ValidationOptions):
    """Training.

    Attributes:
        epochs: Passes over the data.
        batch_size: Examples per step: rollouts, drafted tokens or queries.
        lr: Highest learning rate.
    """

    epochs: Count = 3
    batch_size: Count = 16
    lr: LearningRate = 1e-3


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(DataOptions, FittingOptions, SeedOptions, DeviceOptions):
    """Training.

    Attributes:
        weight_decay: Decoupled weight decay; 0 is plain Adam.
    """

    weight_decay: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class LoggedTrainingOptions(TrainingOptions):
    """Training.

    Attributes:
        checkpoint_every: Steps between two checkpoints to resume from; the end of an epoch is always one.
        log_every: Steps between two rows of metrics.csv.
        wandb: Project on Weights & Biases to log to as well; offline if WANDB_API_KEY is not set.
        threads: CPU threads of a process; by default PyTorch's choice.
        devices: Devices of this machine to train on, one process for each. A batch is divided among them.
        strategy: auto, or ddp, which several devices take in any case.
        precision: Precision of the computation; weights are float32.
    """

    checkpoint_every: Count = 100
    log_every: Count = 10
    wandb: str | None = None
    threads: Annotated[int, Range(1, 1024)] | None = None
    devices: Annotated[int, Range(1, 1024)] = 1
    strategy: Literal["auto", "ddp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"


Predictor = Literal["specdec", "lag-free", "features"]


@dataclass(frozen=True, kw_only=True)
class FeatureSourceOptions(DataOptions, ValidationOptions, DeviceOptions):
    """Features. What predictors learn from: computed once by the models that the data was made with.

    Attributes:
        target: Target model, if it is elsewhere now than when the data was made.
        draft: Draft model, if it is elsewhere now.
        dtype: Precision of these models.
        texts: Take only the first so many texts of each dataset that are not held out.
        traced: Held-out texts to simulate decoding on, which chooses the epoch. With 0 the lowest validation KL chooses
            it, and the target is not needed.
        max_length: Tokens of prompt and response together; longer responses are cut.
        states: Precision of the draft's hidden states on disk.
    """

    target: str | None = None
    draft: str | None = None
    dtype: DType = "float32"
    texts: Count | None = None
    traced: Natural = 100
    max_length: Annotated[int, Range(2, LARGEST)] = 2048
    states: Literal["float16", "float32"] = "float16"


@dataclass(frozen=True, kw_only=True)
class FeatureDataOptions(FeatureSourceOptions, SeedOptions):
    """Feature dataset.

    Attributes:
        data: Folder written by `specpilot data acceptance` or, except for the predictor specdec, `specpilot data
            on-policy`; or several, as "[A,B]", of the same models and sampling.
        predictor: What the features are for: specdec, lag-free or features. The last two use the same.
        mixing: Share r of target tokens in the texts that the draft reads; the others are the draft's, and only they
            are learnt from. At 1 all of the draft's tokens are learnt from, each after the target's own text. The
            default depends on the data's mean acceptance: 0.15, the paper's, or 0.5 where it is below one half.
        mixings: How often the texts are mixed anew; epochs of training use the mixings in turn.
        seed: Seed of the mixing.
    """

    data: Annotated[str | tuple[str, ...], Several()]
    predictor: Predictor = "specdec"
    mixing: Share | None = None
    mixings: Count = 3
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predictor != "specdec":
            self.refuse_ignored(("mixing", "mixings", "seed"), f"predictor={self.predictor} mixes no texts")


@dataclass(frozen=True, kw_only=True)
class PredictorTrainingOptions(FeatureSourceOptions, LoggedTrainingOptions):
    """Acceptance predictor.

    Attributes:
        data: Folder written by `specpilot data features`; or what that command takes, to make the features in the run
            folder.
        predictor: Which predictor is trained: specdec, lag-free or features. Each has further options of its own:
            `--predictor NAME --help`.
        cost: Epochs are compared by simulated tokens/s at these costs: a file of `specpilot bench cost --output`, or
            the time of a draft step in units of a verification. By default 0.21, as in SpecDec++.
    """

    data: Annotated[str | tuple[str, ...], Several()]
    predictor: Predictor = "specdec"
    cost: str | float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        own = next(entry.default for entry in fields(self) if entry.name == "predictor")
        if self.predictor != own:
            raise InputError(
                f"predictor={self.predictor!r}: the other options are those of {own!r}; train it by 'specpilot train "
                f"acceptance --predictor {self.predictor}'"
            )

    @property
    def features(self) -> FeatureDataOptions:
        """The features to make, if ``data`` holds none."""
        names = {entry.name for entry in fields(FeatureDataOptions)} & {entry.name for entry in fields(self)}
        if self.predictor != "specdec":
            names.remove("seed")
        return FeatureDataOptions(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class AcceptanceTrainingOptions(PredictorTrainingOptions):
    """Acceptance head. Defaults are those of SpecDec++ (Huang et al. 2024, §4.1 and Appendix C.1).

    Attributes:
        depth: Residual blocks D of the head; 0 is a linear head.
        w_acc: Loss weight of acceptance.
        w_rej: Loss weight of rejection.
        mixing: Share r of target tokens in the texts that the draft reads; the others are the draft's, and only they
            are learnt from. At 1 all of the draft's tokens are learnt from, each after the target's own text. The
            default depends on the data's mean acceptance: 0.15, the paper's, or 0.5 where it is below one half.
        mixings: How often the texts are mixed anew; epochs use the mixings in turn.
    """

    predictor: Predictor = "specdec"
    depth: Depth = 3
    w_acc: Positive = 1.0
    w_rej: Positive = 6.0
    mixing: Share | None = None
    mixings: Count = 3
    batch_size: Count = 32
    lr: LearningRate = 5e-5


@dataclass(frozen=True, kw_only=True)
class LagFreeTrainingOptions(PredictorTrainingOptions):
    """Lag-free head. The learning rate is the highest of a one-cycle schedule of AdamW.

    Attributes:
        width: Hidden units of the head. A prediction takes about 0.3 µs for each.
        light: Train the design that predicts in a third of the time: it divides the draft's state by a constant
            instead of normalising it, goes without the entropy, and has ReLU units instead of SiLU.
        dropout: Share of the entries of the draft's state and of the token's embedding that a step leaves out; it
            helps on text of another kind than that trained on.
        use_ngrams: Use as features what followed the text's last tokens where they stood before.
    """

    predictor: Predictor = "lag-free"
    width: Count = 32
    light: bool = True
    dropout: Annotated[float, Range(0, 1, "[)")] = 0.3
    use_ngrams: bool = True
    epochs: Count = 4
    batch_size: Count = 512
    lr: LearningRate = 2e-3
    weight_decay: NotNegative = 0.05


@dataclass(frozen=True, kw_only=True)
class FeatureTrainingOptions(PredictorTrainingOptions):
    """Feature model, four numbers. Each epoch is a step of Newton's method, which has no learning rate."""

    predictor: Predictor = "features"
    epochs: Count = 6
    batch_size: Count = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_ignored(("lr", "weight_decay"), "the feature model is fitted by Newton's method")


@dataclass(frozen=True, kw_only=True)
class RouterTrainingOptions(LoggedTrainingOptions):
    """Router. Defaults are those of assistant selection (Huang et al. 2024, §3.1 and Table 9).

    Attributes:
        reward: rouge (the paper's proxy, eq. 2), or throughput: tokens per second that the cost model expects of an
            arm from how much of its drafts the target accepts along its own text, over the target's own.
        alpha: With rouge: weight of alignment; the cost has the rest. 1 counts alignment alone.
        cost: With rouge: parameters (A.5: c = 1 - e^P / e^P_max, P in billions) or time (c = 1 - t / t_max, measured).
        length: With throughput: tokens a draft; null: each prompt's best for each arm.
        gradient: sampled (REINFORCE, the paper's) or exact: every arm's reward is known offline.
        baseline: What is subtracted from the reward: none (the paper's), batch (mean of the others' in the batch) or
            query (mean over the query's arms).
        entropy: Weight of the policy's entropy in nats, to keep it from settling early.
        standardize: Divide every entry of the embedding by its standard deviation over the training data; the
            exported policy has it in its first layer.
        width: Hidden size of the MLP.
        examples: Train on the first so many queries only.
    """

    reward: Literal["rouge", "throughput"] = "rouge"
    alpha: Share = 0.5
    cost: Literal["parameters", "time"] = "parameters"
    length: Annotated[int, Range(1, MAX_LENGTH)] | None = None
    gradient: Literal["sampled", "exact"] = "sampled"
    baseline: Literal["none", "batch", "query"] = "none"
    entropy: NotNegative = 0.0
    standardize: bool = False
    width: Count = 512
    batch_size: Count = 64
    weight_decay: NotNegative = 1e-2
    examples: Count | None = None


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Output.

    Attributes:
        output: Run folder: resolved settings, metrics, checkpoints.
        resume: Continue the unfinished run in the folder.
    """

    output: Folder
    resume: bool = False


@dataclass(frozen=True, kw_only=True)
class OverwriteOptions(Options):
    """Output.

    Attributes:
        overwrite: Replace a checkpoint that is there already.
    """

    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(OverwriteOptions):
    """Output.

    Attributes:
        output: Folder of the checkpoint; `specpilot generate --length FOLDER --cost FILE` takes it.
    """

    output: Folder


@dataclass(frozen=True, kw_only=True)
class ExportOptions(OverwriteOptions):
    """Export.

    Attributes:
        run: Run folder of `specpilot train`; or a controller, which is written in today's format.
        output: Folder of the checkpoint: config.json, model.safetensors, README.md.
        threshold: Stopping threshold h that an acceptance head recommends; the paper's 0.7 by default.
        push_to: Hub repository (owner/name) to upload the checkpoint to.
        private: Make that repository private if it is new.
    """

    run: Path = field(kw_only=False)
    output: Folder = field(kw_only=False)
    threshold: Share | None = None
    push_to: str | None = None
    private: bool = True


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(ValidationOptions, DeviceOptions, OverwriteOptions):
    """Calibration.

    Attributes:
        controller: Checkpoint: a folder, a hub id or a shipped name.
        data: Folder written by `specpilot data acceptance` for the same pair.
        output: Folder of the calibrated checkpoint.
        method: weights (undo the loss weights), temperature, platt or isotonic.
        draft: The draft model the data was made with, if it is elsewhere now.
        validation_fraction: If the head was trained on this very data, the share of prompts that training held out.
        plot: Picture of the reliability before and after.
        report: File that gets the same JSON as standard output.
    """

    controller: str = field(kw_only=False)
    data: str
    output: Folder
    method: Literal["weights", "temperature", "platt", "isotonic"] = "platt"
    draft: str | None = None
    validation_fraction: Fraction = 0.1
    plot: Picture | None = None
    report: File | None = None


# ------------------------------------------------------------------------------------------------------ generate

Auto = Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(TargetOptions, LoadingOptions, SeedOptions):
    """Generation.

    Attributes:
        prompt: The prompt, as a bare word or by flag; "-" reads it from standard input.
        draft: The model that proposes tokens; it shares the target's tokenizer. Several, as "[a,b]", feed one tree, or
            are the arms of a router. "auto" is tiny-draft, or the router's own arms; null decodes without. "ngram"
            copies from the text what followed its last tokens, up to four ("ngram:6": six), where they stood before;
            "tiny-draft+ngram" chooses between the model, a copy and both for each round.
        length: What ends a draft: a number of tokens (4 if not given), a controller checkpoint (folder or hub id), a
            rule such as "cumulative-confidence:0.4", or "none" for plain autoregressive decoding.
        router: Trained router (folder or hub id): it chooses between several drafts, "[a,b,exit:2,autoregressive]", by
            the prompt. Its own arms if the draft is left as it is; the length is then one for all, or a list.
        sample_arm: Draw the arm from the router's policy instead of taking its most likely one.
        threshold: Stopping threshold of a trained controller, in place of the one its checkpoint names.
        cost: File of `specpilot bench cost --output`, or how many verifications a draft step costs, such as 0.2: a
            trained controller then stops where drafting on no longer pays, without a threshold. "auto" measures now,
            and adapts.
        adapt: Keep correcting the cost by the rounds' wall times; the same seed may then draft otherwise.
        tree: Draft a tree instead: children at each level, such as "3x2x1"; "4x1x1" is four chains of three. "auto"
            grows trees node by node, where that pays by the predictions of `length` (a lag-free or feature predictor)
            and by `cost`.
        verifier: Verification rule: token-wise or block for one chain; spec-infer, mcss (children drawn without
            replacement), k-seq or otm also for trees. These keep the target's distribution. Typical, bild and mtad do
            not; their threshold follows a colon, "mtad:0.5". mtjd, with no draft, chooses `length` tokens of the target
            jointly.
        beams: Sequences that mtad and mtjd search among; 4 if not given.
        argmax: Keep the most probable of them instead of drawing them.
        n: Independent samples of the prompt; one after another on standard output.
        max_new_tokens: The most tokens to generate; "auto" is what the target's generation_config names, else 128.
        temperature: Divides the logits; 0 is greedy. "auto" is what the target's generation_config names, else 1.
        top_k: Sample among the k most probable tokens; null keeps all. "auto" as for temperature, else 50.
        top_p: Sample among the most probable tokens of this total mass; 1 keeps all. "auto" as for temperature, else 1.
        generation_config: What is done with the target's generation_config: "follow" takes sampling settings from it
            and refuses what cannot be followed, "ignore" does not look at it.
        chat: Put the prompt into the tokenizer's chat template, if it has one.
        system: System message of the chat.
        stream: Print the text as it comes.
        color: Print the text once it is whole, with accepted, own and rejected tokens in colour.
        stats: Print counters and rates to standard error.
        json: Print one JSON object with text, tokens, rounds and counters instead of text.
        compile: Compile both models first; worth it for long texts only.
        device_map: Spread the target over several devices, as "auto" or "balanced" do in transformers.
        offload_folder: Folder for weights that a device map puts on disk.
        revision: Branch, tag or commit of the target on the hub.
    """

    prompt: str = field(default="-", kw_only=False)
    draft: Annotated[str | tuple[str, ...], Several(distinct=False)] | None = "auto"
    length: Annotated[int | str | tuple[int | str, ...], Several(distinct=False)] | None = None
    router: str | None = None
    sample_arm: bool = False
    threshold: Share | None = None
    cost: str | float | None = None
    adapt: bool = False
    tree: str | None = None
    verifier: str = "token-wise"
    beams: Count | None = None
    argmax: bool = False
    n: Count = 1
    max_new_tokens: Count | Auto = "auto"
    temperature: NotNegative | Auto = "auto"
    top_k: Count | Auto | None = "auto"
    top_p: Annotated[float, Range(0, 1, "(]")] | Auto = "auto"
    generation_config: Literal["follow", "ignore"] = "follow"
    chat: bool = True
    system: str | None = None
    stream: bool = True
    color: bool = False
    stats: bool = False
    json: bool = False
    compile: bool = False
    device_map: str | None = None
    offload_folder: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.system is not None and not self.chat:
            raise InputError("system: is part of the chat template; leave it or --no-chat out")
        if self.color and self.json:
            raise InputError("color: JSON has no colours; give one of color and json")

    @property
    def drafts(self) -> str | tuple[str, ...] | None:
        """The names to load; None where there are none, or a router brings its own."""
        return self.draft if self.draft != "auto" else None if self.router is not None else "tiny-draft"


# --------------------------------------------------------------------------------------------------------- serve


@dataclass(frozen=True, kw_only=True)
class ServeOptions(TargetOptions, LoadingOptions):
    """Server.

    Attributes:
        draft: The model that proposes tokens; as for `specpilot generate`.
        length: What ends a draft: a number of tokens, a controller checkpoint, or a rule; as for `specpilot generate`.
        router: Trained router, which chooses between several drafts; as for `specpilot generate`.
        sample_arm: Draw the arm from the router's policy instead of taking its most likely one.
        router_state: File that keeps what the router learns while it serves; without it a router does not learn.
        threshold: Stopping threshold of a trained controller.
        cost: What a token costs: as for `specpilot generate`. A file of `specpilot bench cost --batch` has the costs by
            the number of requests; "auto" measures them when the server starts.
        verifier: Verification rule of chains: token-wise, block, typical or bild.
        generation_config: What is done with the target's generation_config: follow or ignore.
        device_map: Spread the target over several devices, as "auto" or "balanced" do in transformers.
        offload_folder: Folder for weights that a device map puts on disk.
        revision: Branch, tag or commit of the target on the hub.
        host: Address to listen on; 0.0.0.0 accepts connections from other machines.
        port: Port to listen on; 0 takes a free one.
        api_key: Key that clients must send for everything but /health; by default that of the environment variable
            SPECPILOT_API_KEY, if it is set.
        allow_origins: Origins of web pages that may call the server from a browser, such as https://example.org.
        served_model_name: Name of the model in the API; the target's if not given.
        max_running: Texts decoded together.
        max_queue: Texts that may wait for a place; beyond it clients get 429.
        time_limit: Seconds a request may take.
        max_body: Bytes of a request's body.
        drain: Seconds that running requests have to finish after SIGTERM.
        log_rounds: Folder that gets served rounds as a dataset for `specpilot train acceptance`. It contains prompts
            and texts.
    """

    draft: Annotated[str | tuple[str, ...], Several()] | None = "auto"
    length: Annotated[int | str | tuple[int | str, ...], Several(distinct=False)] | None = None
    router: str | None = None
    sample_arm: bool = False
    router_state: File | None = None
    threshold: Share | None = None
    cost: str | float | None = None
    verifier: str = "token-wise"
    generation_config: Literal["follow", "ignore"] = "follow"
    device_map: str | None = None
    offload_folder: str | None = None
    revision: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8000
    api_key: str | None = None
    allow_origins: Names | None = None
    served_model_name: str | None = None
    max_running: Annotated[int, Range(1, 4096)] = 64
    max_queue: Natural = 256
    time_limit: Positive = 600.0
    max_body: Count = 4 << 20
    drain: Positive = 60.0
    log_rounds: Folder | None = None

    @property
    def drafts(self) -> str | tuple[str, ...] | None:
        """The names to load; None where there are none, or a router brings its own."""
        return self.draft if self.draft != "auto" else None if self.router is not None else "tiny-draft"


# --------------------------------------------------------------------------------------------------------- bench


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(PairOptions, PromptOptions, SamplingOptions, LoadingOptions):
    """Models.

    Attributes:
        compile: Compile the decoder's models first.
    """

    split: str = "test"
    limit: Count = 20
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class DecodeBenchOptions(WorkloadOptions, RepeatOptions):
    """Benchmark.

    Attributes:
        controller: Trained acceptance head for this pair (folder or hub id); the shipped pair has its own.
        plot: Where the picture goes.
    """

    controller: str | None = None
    plot: Picture = Path("runs/decode.png")


@dataclass(frozen=True, kw_only=True)
class NgramBenchOptions(WorkloadOptions, RepeatOptions, OutputFileOptions):
    """Benchmark.

    Attributes:
        limit: How many prompts, of those that invite copying (builtin-copy) and of others (--prompts) each.
        lengths: Length controllers of the draft model, alone and in the mix; the best of each is compared.
        cost: File of `specpilot bench cost --output`, or how many verifications a draft step costs; measured at the
            start if not given.
    """

    limit: Count = 40
    lengths: Annotated[tuple[int | str, ...], Several()] = (2, 4, "cumulative-confidence:0.4")
    cost: str | None = None


@dataclass(frozen=True, kw_only=True)
class BatchBenchOptions(WorkloadOptions, RepeatOptions, OutputFileOptions):
    """Benchmark.

    Attributes:
        requests: Requests of the comparison with fixed batches; their budgets vary from 8 to 128 tokens.
        running: How many of them run together.
        shape: Instead of the pair a Llama with random weights, as in "30x576": layers and width. Its prompts are 32
            random tokens each, it has no draft, and only continuous batching is measured.
    """

    requests: Count = 64
    running: Count = 16
    shape: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape is not None:
            ignored = ("target", "draft", "prompts", "column", "split", "domains", "limit", "skip", "system", "compile")
            self.refuse_ignored(ignored, f"with shape={self.shape!r} model and prompts are random")


@dataclass(frozen=True, kw_only=True)
class MemoryBenchOptions(WorkloadOptions):
    """Benchmark.

    Attributes:
        requests: How many; a reading is taken after every hundredth.
    """

    requests: Count = 1000


@dataclass(frozen=True, kw_only=True)
class TrainScaleBenchOptions(OutputFileOptions):
    """Benchmark.

    Attributes:
        examples: Numbers of drafted tokens to train on.
        hidden_size: d of the draft.
        width: Hidden units of the lag-free head.
        folder: Where random features are written, and removed again: two bytes for each number of each state.
    """

    examples: Annotated[tuple[Count, ...], Several()] = (250_000, 500_000, 2_000_000)
    hidden_size: Count = 2048
    width: Count = 128
    folder: Path = Path("runs/train-scale")


@dataclass(frozen=True, kw_only=True)
class ProfileBenchOptions(WorkloadOptions):
    """Benchmark.

    Attributes:
        length: Tokens a draft; 0 is autoregressive.
    """

    length: Natural = 5


@dataclass(frozen=True, kw_only=True)
class CostBenchOptions(WorkloadOptions, RepeatOptions, OutputFileOptions):
    """Benchmark. Few prompts suffice, and none that controllers are compared on.

    Attributes:
        repeats: How often each generation, and ten times that how often each forward is timed; medians are taken.
        judge: A trained controller that predicts for every drafted token meanwhile: the costs are then those of
            decoding with it, its own time included.
        check: Length controllers, as in `specpilot generate`, to compare the model's times of with the clock's; trained
            ones stop at draft steps of 0.2 verifications.
        batch: Numbers of requests whose shared rounds are timed as well, such as "[1,4,16,64]"; `specpilot serve` then
            drafts by how many requests there are.
        output: File that gets the same JSON as standard output; `specpilot generate --cost` reads it.
    """

    split: str = "train"
    limit: Count = 4
    max_new_tokens: Count = 64
    repeats: Count = 5
    judge: str | None = None
    check: Names | None = None
    batch: Annotated[tuple[Annotated[int, Range(1, 4096)], ...], Several()] | None = None
    output: File | None = None


@dataclass(frozen=True, kw_only=True)
class RolloutsBenchOptions(AcceptanceDataOptions, RepeatOptions):
    """Benchmark."""


@dataclass(frozen=True, kw_only=True)
class ForwardBenchOptions(PairOptions, LoadingOptions):
    """Benchmark.

    Attributes:
        repeats: Forwards timed for each figure; medians are reported.
        compile: Time the compiled path too.
    """

    repeats: Count = 50
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class OtmBenchOptions(PairOptions, LoadingOptions):
    """Benchmark.

    Attributes:
        prompt: Text after which the two models' next tokens are compared in the last figure.
        output: Where the picture goes.
    """

    prompt: str = "He said he also has asked prosecutors to"
    output: Picture = Path("runs/otm.png")


@dataclass(frozen=True, kw_only=True)
class RouterBenchOptions(
    TargetOptions, PromptSourceOptions, TrainSplitOptions, SamplingOptions, LoadingOptions, OutputFileOptions
):
    """Benchmark.

    Attributes:
        drafts: Draft models to choose between.
        pair: Two of them that are each good at one of pair_domains: Table 1, and Table 3/4 with autoregressive. By
            default the shipped ones for math and for SQL and shell, or else the first two drafts.
        pair_domains: The domains they are good at; by default math and sql of the built-in prompts, or else all.
        exits: Layers of the target after which it drafts itself (Table 6, and the larger drafts of Figure 2); none
            for an encoder-decoder.
        limit: Held-out prompts that are decoded and timed.
        train_limit: Prompts that rewards are computed on.
        repeats: How often routers and single drafts decode a prompt, the time in the middle being kept; the tables'
            other lengths and exits decode it once.
        work: Folder of the two datasets; kept, and continued.
        length: Tokens a draft where the length is fixed.
        learned: The length that is learnt, or follows the text: a rule, or a controller for each draft in order.
        temperatures: Others that the routers are tried at (Tables 13, 14).
        lengths: Fixed lengths that are tried (Tables 11, 12).
        examples: Numbers of training prompts that are tried (Figure 3); all of them come last.
        seeds: Trainings of each of those, with as many seeds.
        alphas: Weights of alignment that are tried (Figure 2).
    """

    split: str = "test"
    drafts: Annotated[tuple[str, ...], Several(2)] = (
        "tiny-draft", "tiny-draft-code-prose", "tiny-draft-math", "tiny-draft-sql-shell",
    )  # fmt: skip
    pair: tuple[str, ...] = ()
    pair_domains: tuple[str, ...] = ()
    exits: tuple[Count, ...] = (1, 2, 3)
    limit: Count = 120
    train_limit: Count = 1500
    repeats: Count = 3
    work: Annotated[str, Place(folder=True)] = "runs/router-bench"
    length: Annotated[int, Range(1, MAX_LENGTH)] = 4
    learned: str | tuple[str, ...] = "cumulative-confidence:0.3"
    max_new_tokens: Count = 96
    temperatures: tuple[NotNegative, ...] = (0.5, 0.9)
    lengths: tuple[Annotated[int, Range(1, MAX_LENGTH)], ...] = (5, 7, 10)
    examples: tuple[Count, ...] = (10, 30, 100, 300)
    seeds: Count = 3
    alphas: tuple[Share, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        shipped = ("tiny-draft-math", "tiny-draft-sql-shell")
        pair = self.pair or (shipped if set(shipped) <= set(self.drafts) else self.drafts[:2])
        if len(pair) != 2 or not set(pair) <= set(self.drafts):
            raise InputError(f"pair={list(pair)}: name two of the drafts: {', '.join(self.drafts)}")
        object.__setattr__(self, "pair", pair)
        if not self.pair_domains and self.prompts in BUILTIN:
            object.__setattr__(self, "pair_domains", ("math", "sql"))
        if len(self.pair_domains) not in (0, 2):
            raise InputError(f"pair_domains={list(self.pair_domains)}: name two domains")
        if isinstance(self.learned, tuple) and len(self.learned) != len(self.drafts):
            raise InputError(f"learned={list(self.learned)}: give one for all drafts, or one for each")

    @property
    def arms(self) -> tuple[str, ...]:
        """All arms that data is made for."""
        return (*self.drafts, *(f"exit:{layer}" for layer in self.exits), "autoregressive")


@dataclass(frozen=True, kw_only=True)
class QuestionsOptions(WorkloadOptions):
    """Benchmark.

    Attributes:
        task: prompts (any), spec-bench, mt-bench, alpaca, gsm8k, humaneval, spider or xsum. With the prompts left as
            they are, a task other than prompts takes its questions from its home on the hub.
        databases: Spider's folder of databases.
        run_code: Run generated Python, in a process of its own with limits of time and memory, to score it.
        length: What ends a draft, as in `specpilot generate`.
        verifier: Verification rule, as in `specpilot generate`.
        tree: Draft a tree instead, such as "3x2x1".
        beams: Sequences that mtad searches among.
        output: Folder of the two files of answers, and of what was measured for them, in records.
    """

    task: str = "prompts"
    databases: Path | None = None
    run_code: bool = False
    length: int | str | None = None
    verifier: str = "token-wise"
    tree: str | None = None
    beams: Count | None = None
    output: Folder = Path("runs/questions")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task != "prompts":
            ignored = ("column", "domains", *(("split",) if self.prompts == "builtin" else ()))
            self.refuse_ignored(ignored, f"the task {self.task!r} has its own")


@dataclass(frozen=True, kw_only=True)
class PapersOptions(WorkloadOptions):
    """Benchmark. Sampling is the papers'.

    Attributes:
        validation_limit: How many other prompts, for the choice of settings: of the built-in prompts' validation split,
            or those that follow in a file.
        train_limit: How many prompts heads (specdecpp) and routers (selection) are trained on.
        drafts: Drafts to choose between (selection); the first two are each good at one of pair_domains.
        pair_domains: The domains they are good at; by default math and sql of the built-in prompts, or else all.
    """

    limit: Count = 60
    validation_limit: Count = 16
    train_limit: Count = 400
    drafts: Annotated[tuple[str, ...], Several(2)] = (
        "tiny-draft-math", "tiny-draft-sql-shell", "tiny-draft", "tiny-draft-code-prose",
    )  # fmt: skip
    pair_domains: tuple[str, ...] = ()
    max_new_tokens: Count = 96
    top_k: Count | None = 10
    top_p: Annotated[float, Range(0, 1, "(]")] = 0.9

    def validation(self) -> WorkloadOptions:
        """The same on the prompts to choose by."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(WorkloadOptions)}
        values |= {"split": "validation"} if self.prompts in BUILTIN else {"skip": self.skip + self.limit}
        return WorkloadOptions(**(values | {"limit": self.validation_limit}))


@dataclass(frozen=True, kw_only=True)
class PapersOutputOptions(Options):
    """Output.

    Attributes:
        paper: Which paper, or all; see `bench/papers`.
        output: Folder of the tables, and of what was measured, in records.
    """

    paper: str = field(default="all", kw_only=False)
    output: Folder = Path("runs/papers")


@dataclass(frozen=True, kw_only=True)
class HeldOutOptions(PromptSourceOptions):
    """Prompts.

    Attributes:
        in_domain: Domains that controllers are trained on; the others are only measured on. By default math, code, sql
            and prose of the built-in prompts, or else all.
        per_domain: How many prompts of each domain are held out to measure on.
    """

    prompts: str = "builtin-large"
    split: str = "test"
    in_domain: tuple[str, ...] = ()
    per_domain: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.in_domain and self.prompts in BUILTIN and self.domains is None:
            object.__setattr__(self, "in_domain", ("math", "code", "sql", "prose"))


@dataclass(frozen=True, kw_only=True)
class AblationOptions(PairOptions, HeldOutOptions, SamplingOptions, SeedOptions, DeviceOptions, StudyFolderOptions):
    """Study.

    Attributes:
        controllers: Trained controllers as name=PATH, in the order of the table.
        ours: Name of the one that is compared with the rules; by default the last.
        costs: What tokens cost: numbers t_draft / t_verify, or files of `specpilot bench cost --output`.
    """

    controllers: Names
    ours: str | None = None
    costs: Annotated[tuple[float | str, ...], Several()] = (0.21, 0.05)
    per_domain: Count = 300
    max_new_tokens: Count = 64
    folder: Folder = Path("runs/ablation")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "costs", tuple(map(str, self.costs)))
        names = [controller.partition("=")[0] for controller in self.controllers]
        for controller, name in zip(self.controllers, names, strict=True):
            if not name or "=" not in controller:
                raise InputError(f"controllers: {controller!r}: give it as name=PATH")
            if names.count(name) > 1:
                raise InputError(f"controllers: the name {name!r} is given twice")
        if self.ours is None:
            object.__setattr__(self, "ours", names[-1])
        elif self.ours not in names:
            raise InputError(f"ours={self.ours!r}: choose one of {', '.join(names)}")


@dataclass(frozen=True, kw_only=True)
class TreeStudyOptions(PairOptions, HeldOutOptions, TruncationOptions, SeedOptions, DeviceOptions, StudyFolderOptions):
    """Study.

    Attributes:
        controllers: For each temperature a lag-free or feature predictor trained at it, as TEMPERATURE=PATH.
        ratio: t_draft / t_verify of the ideal machines.
        slopes: b of the ideal machines: what each token more in a verification adds, as a share of a verification.
        cost: File of `specpilot bench cost --output`: another machine, as it was measured.
    """

    controllers: Names
    ratio: NotNegative = 0.05
    slopes: Annotated[tuple[Share, ...], Several()] = (0.1, 0.02, 0.0)
    cost: Path | None = None
    max_new_tokens: Count = 64
    folder: Folder = Path("runs/trees")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.by_temperature) < len(self.controllers):
            raise InputError("controllers: a temperature is given twice; give one controller for each")

    @property
    def by_temperature(self) -> dict[float, str]:
        """The controllers' paths."""
        found = {}
        for controller in self.controllers:
            temperature, _, path = controller.partition("=")
            try:
                found[float(temperature)] = path
            except ValueError:
                path = ""
            if not path:
                raise InputError(f"controllers: {controller!r}: give it as TEMPERATURE=PATH")
        return found


@dataclass(frozen=True, kw_only=True)
class ClockBenchOptions(PairOptions, HeldOutOptions, SamplingOptions, DeviceOptions, RepeatOptions, StudyFolderOptions):
    """Benchmark.

    Attributes:
        controller: Trained controller that stops by cost, for this pair.
        misfit: A draft that fits badly, which is timed as well.
        misfit_controller: Trained controller for the target and that draft.
        misfit_domain: Domain of the prompts that it is timed on.
    """

    controller: str = "tiny-lag-free"
    misfit: str | None = None
    misfit_controller: str | None = None
    misfit_domain: str = "dialogue"
    per_domain: Count = 10
    max_new_tokens: Count = 64
    folder: Folder = Path("runs/clock")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.misfit is None) != (self.misfit_controller is None):
            raise InputError(
                f"misfit={self.misfit!r}, misfit_controller={self.misfit_controller!r}: a controller belongs to its "
                "pair; give both or none"
            )


@dataclass(frozen=True, kw_only=True)
class HeadStudyOptions(
    HeldOutOptions, TrainSplitOptions, FittingOptions, SeedOptions, DeviceOptions, StudyFolderOptions
):
    """Study.

    Attributes:
        train_prompts: How many prompts are trained on.
        plot: Picture of the result; by default in the folder.
    """

    train_prompts: Count = 2000
    plot: Picture | None = None


@dataclass(frozen=True, kw_only=True)
class SweepOptions(PairOptions, SamplingOptions, HeadStudyOptions):
    """Study. The grid of heads is the paper's (Huang et al. 2024, Tables 1 and 3, Figure 4).

    Training is shorter and its learning rate higher, as befits small heads and a few thousand prompts.

    Attributes:
        data: Acceptance dataset to train the heads on; by default one is made of the training split of the prompts.
        depths: Residual blocks D of the heads.
        weights: Loss weights of rejection.
        thresholds: Stopping thresholds h.
        lengths: Fixed lengths K, to compare with.
        confidences: Thresholds of cumulative confidence, to compare with.
        mixing: Share of target tokens in the training sequences.
        cost: File of `specpilot bench cost --output`; by default the costs are measured.
    """

    data: str | None = None
    depths: Annotated[tuple[Depth, ...], Several()] = (0, 1, 2, 3, 4)
    weights: Annotated[tuple[Positive, ...], Several()] = (1.0, 3.0, 6.0, 12.0)
    thresholds: Annotated[tuple[Share, ...], Several()] = (0.1, 0.3, 0.5, 0.7, 0.9)
    lengths: Annotated[tuple[Annotated[int, Range(1, MAX_LENGTH)], ...], Several()] = (2, 4, 6, 8, 10, 12, 14)
    confidences: Annotated[tuple[Share, ...], Several()] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    mixing: Share = 0.15
    max_new_tokens: Count = 64
    folder: Folder = Path("runs/sweep")
    cost: Path | None = None


@dataclass(frozen=True, kw_only=True)
class MixingOptions(TargetOptions, TruncationOptions, HeadStudyOptions):
    """Study.

    Attributes:
        drafts: Draft models; each gives a dataset of its own agreement.
        temperatures: Of both models; each gives a dataset of its own agreement.
        mixings: Shares r; 1 trains on the target's own text as context throughout.
        depth: Residual blocks D of the heads.
        w_rej: Loss weight of rejection.
    """

    drafts: Names = ("tiny-draft", "tiny-draft-math")
    temperatures: Annotated[tuple[NotNegative, ...], Several()] = (0.5, 1.0, 1.5)
    mixings: Annotated[tuple[Share, ...], Several()] = (0.15, 0.5, 0.85, 0.95, 1.0)
    train_prompts: Count = 1200
    per_domain: Count = 20
    max_new_tokens: Count = 64
    depth: Depth = 3
    w_rej: Positive = 6.0
    validation_fraction: Fraction = 0.2
    folder: Folder = Path("runs/mixing")

    def sweep(self, draft: str, temperature: float, mixing: float, domains: tuple[str, ...]) -> SweepOptions:
        """One head of the study as a sweep of one; ``domains`` are trained on."""
        shared = {entry.name for entry in fields(SweepOptions)} & {entry.name for entry in fields(self)}
        values = {name: getattr(self, name) for name in shared}
        return SweepOptions(
            **values | {"in_domain": domains}, draft=draft, temperature=temperature, mixing=mixing,
            depths=(self.depth,), weights=(self.w_rej,),
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- rest


@dataclass(frozen=True, kw_only=True)
class DemoOptions(SeedOptions):
    """Demo.

    Attributes:
        output: Folder for the dataset, runs, controllers and report. A finished demo there is replaced.
        prompts: Prompts the heads are trained on.
        held_out: Prompts the decoders are compared on.
        max_new_tokens: Longest answer, in training and comparison.
    """

    output: Folder = Path("runs/demo")
    prompts: Annotated[int, Range(2, LARGEST)] = 800
    held_out: Annotated[int, Range(2, LARGEST)] = 48
    max_new_tokens: Annotated[int, Range(2, LARGEST)] = 128


@dataclass(frozen=True, kw_only=True)
class EnvOptions(Options):
    """Output.

    Attributes:
        json: Print one JSON object instead of a table.
    """

    json: bool = False
