"""The options of every command, as frozen dataclasses.

The parameters of a command (``commands/``) are such classes. Their fields define its flags and ``--config`` keys, and
the docstrings its ``--help``. Options shared by several commands are in base classes. A field is documented once, in
the class that introduces it; a subclass may change its default. Limits are part of a field's type and are checked for
calls from Python, too.

Every part of the package may import this module, which imports only ``InputError``. It is longer than other files so
that all options are in one place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from .controllers.errors import InputError
from .controllers.finite import is_finite


@dataclass(frozen=True)
class Range:
    """Finite numbers from ``low`` to ``high``; ``ends`` are the interval's brackets, such as ``[)``."""

    low: float
    high: float = math.inf
    ends: str = "[]"

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, bool | str):
            return
        problem = None
        if not is_finite(value):
            problem = "a finite number"
        elif value < self.low or (value == self.low and self.ends[0] == "("):
            problem = f"{'at least' if self.ends[0] == '[' else 'above'} {self.low}"
        elif value > self.high or (value == self.high and self.ends[1] == ")"):
            problem = f"{'at most' if self.ends[1] == ']' else 'below'} {self.high}"
        if problem is not None:
            raise InputError(f"{name}={value}: must be {problem}")


@dataclass(frozen=True)
class Several:
    """A list of at least ``least`` values, without repetitions if ``distinct``."""

    least: int = 1
    distinct: bool = True

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, tuple) and (len(value) < self.least or (self.distinct and len(set(value)) < len(value))):
            least = "one value" if self.least == 1 else f"{self.least} values"
            raise InputError(f"{name}={list(value)}: give at least {least}{', and none twice' * self.distinct}")


@dataclass(frozen=True)
class Pattern:
    """Text that matches ``regex``; ``remedy`` describes the form in the error message."""

    regex: str
    remedy: str

    def check(self, name: str, value: Any) -> None:
        if not re.fullmatch(self.regex, str(value)):
            raise InputError(f"{name}={str(value)!r}: {self.remedy}")


@dataclass(frozen=True)
class Place:
    """A folder or a file to write, which may exist; checked before anything is computed."""

    folder: bool

    def check(self, name: str, value: Any) -> None:
        path = Path(value)
        if not self.folder and path.exists() and not path.is_file():
            raise InputError(f"{name}={str(path)!r}: is a folder or a device; name a file")
        above = [path, *path.parents] if self.folder else path.parents
        there = next((place for place in above if place.exists()), None)
        if there is not None and not there.is_dir():
            raise InputError(f"{name}={str(path)!r}: {str(there)!r} is not a folder; name another")


@dataclass(frozen=True)
class Choice:
    """One of ``words``, if the value is a string."""

    words: tuple[object, ...]

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, str) and value not in self.words:
            raise InputError(f"{name}={value!r}: choose one of {', '.join(map(str, self.words))}")


Limit = Range | Several | Pattern | Place | Choice
LARGEST = 2**31 - 1  # largest count
MAX_DEPTH = 64  # largest depth of a head in a checkpoint
MAX_LENGTH = 20  # largest draft length
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
DraftDType = Literal[DType, "int8", "int4"]
Device = Annotated[
    str, Pattern(r"auto|(?!meta)[a-z]+(:\d{1,3})?", "no device of this machine; give 'auto', 'cpu', 'cuda' or 'cuda:1'")
]
File = Annotated[Path, Place(folder=False)]
Folder = Annotated[Path, Place(folder=True)]
Picture = Annotated[
    File, Pattern(r"(?i).+\.(png|pdf|svg|jpe?g|webp)", "unknown format; end it in .png, .pdf, .svg, .jpg or .webp")
]
HostPort = Annotated[
    str, Pattern(r"[^/:]+:\d{1,5}", "no address of a head node; give HOST:PORT, such as 10.0.0.1:6379")
]
WebAddress = Annotated[str, Pattern(r"https?://\S+", "no address; give one such as http://localhost:8000/v1")]
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
    """Base class: converts lists to tuples, and checks every value against the limits in its field's type.

    Raises:
        InputError: a value is outside its limits.
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
        """Raise InputError if one of the fields ``names`` does not have its default value."""
        for entry in fields(self):
            if entry.name in names and getattr(self, entry.name) != entry.default:
                raise InputError(
                    f"{entry.name}={getattr(self, entry.name)!r}: would be ignored, {reason}; leave it out"
                )


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Options):
    """Models.

    Attributes:
        target: Target model: a shipped model, a folder, a hub id, or a GGUF file. The text has its distribution.
    """

    target: str = "tiny"


@dataclass(frozen=True, kw_only=True)
class PairOptions(TargetOptions):
    """Models.

    Attributes:
        draft: Draft model with the target's tokenizer: a shipped model, a folder, a hub id, or a GGUF file.
    """

    draft: str = "tiny-draft"


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Models.

    Attributes:
        device: auto (an accelerator if there is one), cpu, cuda, cuda:1, …
    """

    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(DeviceOptions):
    """Models.

    Attributes:
        dtype: Precision of the models; auto uses that of each checkpoint.
        trust_remote_code: Run code that comes with the models; only for sources you trust.
    """

    dtype: DType = "float32"
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class DraftPrecisionOptions(Options):
    """Models.

    Attributes:
        draft_dtype: Precision of the draft models, if it is not that of the target. int8 and int4 round the weights of
            drafts on a CPU.
    """

    draft_dtype: DraftDType | None = None


@dataclass(frozen=True, kw_only=True)
class PlacementOptions(Options):
    """Models.

    Attributes:
        device_map: Spread the target over several devices: "auto" or "balanced" as in transformers, or a device, "cpu"
            or "disk" for each of its modules.
        offload_folder: Folder for weights that a device map puts on disk.
    """

    device_map: str | dict[str, int | str] | None = None
    offload_folder: Folder | None = None

    @property
    def placement(self) -> dict[str, Any]:
        """Keywords of ``load_model`` for the target."""
        return {"device_map": self.device_map, "offload_folder": self.offload_folder}


@dataclass(frozen=True, kw_only=True)
class PairCheckOptions(Options):
    """Models.

    Attributes:
        pair_check: What a trained controller asks of the pair: exact, the models it was trained for; tokenizer, models
            with their tokenizer, such as the same ones in another precision or as GGUF files, with a warning.
    """

    pair_check: Literal["exact", "tokenizer"] = "exact"


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
        max_new_tokens: Maximum number of new tokens per text.
        top_k: Sample from the k most probable tokens; null keeps all.
        top_p: Sample from the most probable tokens with this total probability; 1 keeps all.
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
        column: Column that holds the prompt; columns named id and domain are used if present.
        split: Split of the built-in prompts (train, validation, test) or of a hub dataset; a file has none.
        domains: Take only prompts of these domains.
        chat: Apply the tokenizer's chat template; otherwise prompts are continued as plain text.
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
        """Whether the prompts are in a local file or folder, which has no splits."""
        return self.prompts not in BUILTIN and Path(self.prompts).expanduser().exists()


@dataclass(frozen=True, kw_only=True)
class PromptOptions(PromptSourceOptions):
    """Prompts.

    Attributes:
        limit: Maximum number of prompts.
        skip: Number of prompts to skip first.
    """

    limit: Count | None = None
    skip: Natural = 0


@dataclass(frozen=True, kw_only=True)
class TrainSplitOptions(Options):
    """Prompts.

    Attributes:
        train_split: Split of the training prompts. Held-out prompts are excluded from it, so it may be the same split.
    """

    train_split: str = "train"


@dataclass(frozen=True, kw_only=True)
class RepeatOptions(Options):
    """Measurement.

    Attributes:
        repeats: Number of timed repetitions; medians are reported.
    """

    repeats: Count = 3


@dataclass(frozen=True, kw_only=True)
class OutputFileOptions(Options):
    """Output.

    Attributes:
        output: File for the JSON that is printed to standard output.
    """

    output: File | None = None


@dataclass(frozen=True, kw_only=True)
class StudyFolderOptions(OutputFileOptions):
    """Output.

    Attributes:
        folder: Folder for intermediate results; an interrupted run is continued from it.
    """

    folder: Folder = Path("runs/study")


# ---------------------------------------------------------------------------------------------------------- data


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(PromptOptions, SamplingOptions, LoadingOptions, SeedOptions):
    """Dataset. Every field that its rows depend on is part of its identity.

    Attributes:
        max_prompt_tokens: Skip longer prompts; by default a prompt that fills the context is an error.
        batch_size: Prompts generated together.
        shard_size: Prompts per shard; a killed run loses at most one shard.
    """

    max_prompt_tokens: Count | None = None
    batch_size: Count = 64
    shard_size: Count = 256


@dataclass(frozen=True, kw_only=True)
class AcceptanceDataOptions(PairOptions, PlacementOptions, DatasetOptions):
    """Acceptance dataset."""


@dataclass(frozen=True, kw_only=True)
class AnswersDataOptions(TargetOptions, PlacementOptions, DatasetOptions):
    """Dataset of the target's own answers."""


@dataclass(frozen=True, kw_only=True)
class OnPolicyDataOptions(AcceptanceDataOptions):
    """Dataset of the decoder's rounds.

    Attributes:
        length: Length controller: a number, a rule, or a trained controller.
        threshold: Stopping threshold of a trained controller.
        cost: Cost model of a trained controller, instead of a threshold: a file of `specpilot bench cost --output`, or
            the time of a draft step in units of a verification, such as 0.2.
    """

    length: str = "8"
    threshold: Share | None = None
    cost: str | float | None = None


ARMS = ("tiny-draft", "tiny-draft-code-prose", "tiny-draft-math", "tiny-draft-sql-shell", "autoregressive")


@dataclass(frozen=True, kw_only=True)
class RouterDataOptions(TargetOptions, PlacementOptions, DatasetOptions):
    """Router dataset.

    Attributes:
        arms: The arms in order: draft models, exit:LAYER (the target's first layers draft), ngram (copies from the
            text), and autoregressive (no draft).
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
        plan: Print the planned work, its size on disk and its time; write nothing.
    """

    plan: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Options):
    """Workers.

    Attributes:
        workers: Number of workers on a Ray cluster, each with a device and models of its own. Shards are the same bytes
            for any number. Default: none, the models are loaded by this process.
        ray: Address of the cluster's head node, such as 10.0.0.1:6379. Default: a cluster on this machine is started.
        gpus_per_worker: GPUs that a worker takes if the cluster has any; several are for a target with a --device-map.
    """

    workers: Annotated[int, Range(1, 1024)] | None = None
    ray: HostPort | None = None
    gpus_per_worker: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ray is not None and self.workers is None:
            raise InputError(f"ray={self.ray!r}: needs the number of workers; add --workers")
        if self.workers is None:
            self.refuse_ignored(("gpus_per_worker",), "there are no workers")


ONE_PROCESS = WorkerOptions()


@dataclass(frozen=True, kw_only=True)
class ResponseOptions(Options):
    """Texts of another engine.

    Attributes:
        responses: What generates the target's texts, which target and draft then label here. openai: a server with
            OpenAI's completions API. vllm: vLLM in this process, or in each worker. Default: the target itself.
        base_url: Address of the server, such as http://localhost:8000/v1. The environment variable OPENAI_API_KEY is
            sent as the key.
        model: The target's name at the server. Default: that of --target.
        retries: Number of times that a request is sent again when the server is busy or cannot be reached.
        timeout: Seconds to wait for a text.
        tensor_parallel: GPUs that vLLM divides the target among.
        kv_cache_gib: Memory for vLLM's keys and values in GiB. Default: as much as vLLM takes.
    """

    responses: Literal["openai", "vllm"] | None = None
    base_url: WebAddress | None = None
    model: str | None = None
    retries: Natural = 8
    timeout: Positive = 600.0
    tensor_parallel: Count = 1
    kv_cache_gib: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.responses != "openai":
            self.refuse_ignored(("base_url", "model", "retries", "timeout"), "no server generates the texts")
        if self.responses != "vllm":
            self.refuse_ignored(("tensor_parallel", "kv_cache_gib"), "vLLM does not generate the texts")
        if self.responses == "openai" and self.base_url is None:
            raise InputError("responses='openai': needs the server's address; add --base-url http://HOST:PORT/v1")


OWN_RESPONSES = ResponseOptions()

# ------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """Data.

    Attributes:
        data: Folder written by `specpilot data …`, or several with the same models and sampling, as "[A,B]".
    """

    data: Annotated[str | tuple[str, ...], Several()]

    @property
    def folders(self) -> tuple[str, ...]:
        return (self.data,) if isinstance(self.data, str) else self.data


@dataclass(frozen=True, kw_only=True)
class ValidationOptions(Options):
    """Data.

    Attributes:
        validation_fraction: Share of the prompts held out for validation, chosen by a hash of their id.
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
        checkpoint_every: Steps between two checkpoints; there is also one at the end of each epoch.
        log_every: Steps between two rows of metrics.csv.
        wandb: Weights & Biases project to log to; offline if WANDB_API_KEY is not set.
        threads: CPU threads per process; by default PyTorch's choice.
        devices: Number of devices of each machine to train on, one process each. Batches are split among them.
        num_nodes: Number of machines. The same command is run on each, with NODE_RANK, MASTER_ADDR and MASTER_PORT set,
            and the data and the run folder on storage that all of them see.
        strategy: auto or ddp; several devices or machines always use ddp.
        precision: Precision of the computation; weights are float32.
    """

    checkpoint_every: Count = 100
    log_every: Count = 10
    wandb: str | None = None
    threads: Annotated[int, Range(1, 1024)] | None = None
    devices: Annotated[int, Range(1, 1024)] = 1
    num_nodes: Annotated[int, Range(1, 1024)] = 1
    strategy: Literal["auto", "ddp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"


Predictor = Literal["specdec", "lag-free", "features"]


@dataclass(frozen=True, kw_only=True)
class FeatureSourceOptions(DataOptions, ValidationOptions, DeviceOptions):
    """Features. The inputs of predictors, computed once with the models that the data was made with.

    Attributes:
        target: Target model, if it has moved since the data was made.
        draft: Draft model, if it has moved since the data was made.
        dtype: Precision of these models.
        texts: Maximum number of training texts per dataset.
        traced: Number of held-out texts on which decoding is simulated to choose the best epoch. With 0 it is the epoch
            of lowest validation KL, and the target is not needed.
        max_length: Maximum tokens of prompt and response together; longer responses are cut.
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
class FeatureDataOptions(FeatureSourceOptions, PlacementOptions, SeedOptions):
    """Feature dataset.

    Attributes:
        data: Folder written by `specpilot data acceptance` or, except for the predictor specdec, `specpilot data
            on-policy`; or several with the same models, as "[A,B]". They may differ in sampling, again except for
            specdec.
        predictor: Predictor that the features are for: specdec, lag-free or features. The last two use the same.
        mixing: Share r of target tokens in the texts that the draft reads; the other tokens are the draft's and are the
            training examples. At 1 every draft token is an example, with the target's text as context. Default: 0.15 as
            in the paper, or 0.5 if the data's mean acceptance is below one half.
        mixings: Number of different mixings of the texts; training epochs use them in turn.
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
        data: Folder written by `specpilot data features`; or data for that command, to make the features in the run
            folder.
        predictor: The predictor to train: specdec, lag-free or features. Each has further options:
            `--predictor NAME --help`.
        cost: Costs for the simulated tokens/s by which epochs are compared: a file of `specpilot bench cost --output`,
            or the time of a draft step in units of a verification. Default: 0.21, as in SpecDec++.
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
        mixing: Share r of target tokens in the texts that the draft reads; the other tokens are the draft's and are the
            training examples. At 1 every draft token is an example, with the target's text as context. Default: 0.15 as
            in the paper, or 0.5 if the data's mean acceptance is below one half.
        mixings: Number of different mixings of the texts; epochs use them in turn.
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
        light: Train a design that predicts in a third of the time: it divides the draft's state by a constant instead
            of normalising it, does not use the entropy, and has ReLU units instead of SiLU.
        dropout: Dropout on the draft's state and the token's embedding; it helps on text of other domains than the
            training data.
        use_ngrams: Use features of n-gram matches in the text.
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
    """Feature model with four parameters. Each epoch is a step of Newton's method, which has no learning rate."""

    predictor: Predictor = "features"
    epochs: Count = 6
    batch_size: Count = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_ignored(("lr", "weight_decay"), "the feature model is fitted by Newton's method")


@dataclass(frozen=True, kw_only=True)
class CopyTrainingOptions(LoggedTrainingOptions):
    """Copy head. The learning rate is the highest of a one-cycle schedule of AdamW.

    Attributes:
        data: Folder of the target's own texts, written by `specpilot data answers`, acceptance or on-policy; or several
            of the same target, as "[A,B]". They may differ in sampling.
        target: Target model, if it has moved since the data was made. Only its embedding is kept in memory.
        width: Hidden units of the head.
        dropout: Dropout on the embeddings.
        batch_size: Copied tokens per step.
    """

    data: Annotated[str | tuple[str, ...], Several()]
    target: str | None = None
    width: Count = 32
    dropout: Annotated[float, Range(0, 1, "[)")] = 0.2
    batch_size: Count = 256
    lr: LearningRate = 3e-3
    weight_decay: NotNegative = 1e-2


@dataclass(frozen=True, kw_only=True)
class RouterTrainingOptions(LoggedTrainingOptions):
    """Router. Defaults are those of assistant selection (Huang et al. 2024, §3.1 and Table 9).

    Attributes:
        reward: rouge (the paper's proxy, eq. 2), or throughput (tokens per second that the cost model expects from an
            arm's acceptance rates along the target's output, relative to the target alone).
        alpha: With rouge: weight of alignment; the cost has weight 1 - alpha.
        cost: With rouge: parameters (A.5: c = 1 - e^P / e^P_max, P in billions) or time (c = 1 - t / t_max, measured).
        length: With throughput: draft length; null takes the best for each prompt and arm.
        gradient: sampled (REINFORCE, as in the paper) or exact (from all arms' rewards, which are known offline).
        baseline: Baseline subtracted from the reward: none (as in the paper), batch (mean over the other queries of the
            batch) or query (mean over the query's arms).
        entropy: Weight of the policy's entropy in nats, to prevent early convergence.
        standardize: Divide every entry of the embedding by its standard deviation over the training data; the exported
            policy includes the scaling in its first layer.
        width: Hidden size of the MLP.
        examples: Maximum number of training queries.
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
class TextOptions(DataOptions):
    """Data.

    Attributes:
        data: Text: a JSON Lines, Parquet or text file, a folder of such, or a hub dataset, with a column prompt and
            perhaps response; or the target's own answers, a folder written by `specpilot data answers`, acceptance or
            on-policy. Or several, as "[A,B]".
        chat: Put prompt and response together by the tokenizer's chat template.
        limit: Maximum number of texts of each source.
    """

    data: Annotated[str | tuple[str, ...], Several()]
    chat: bool = True
    limit: Count | None = None


@dataclass(frozen=True, kw_only=True)
class DraftTrainingOptions(TargetOptions, LoadingOptions, TextOptions, LoggedTrainingOptions):
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
        resume: Continue the unfinished run in the folder.
    """

    output: Folder
    resume: bool = False


@dataclass(frozen=True, kw_only=True)
class OverwriteOptions(Options):
    """Output.

    Attributes:
        overwrite: Replace an existing checkpoint.
    """

    overwrite: bool = False


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
        method: weights (undo the loss weights), temperature, platt or isotonic.
        draft: Draft model that the data was made with, if it has moved since.
        validation_fraction: Share of prompts that training held out, if the head was trained on this data.
        plot: File for the reliability plot before and after calibration.
        report: File for the JSON that is printed to standard output.
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
class GenerateOptions(
    TargetOptions, PlacementOptions, LoadingOptions, DraftPrecisionOptions, PairCheckOptions, SeedOptions
):
    """Generation.

    Attributes:
        prompt: The prompt, as a positional argument or by flag; "-" reads it from standard input.
        draft: Draft model with the target's tokenizer. Several, as "[a,b]", form one tree, or are the arms of a router.
            "auto" is tiny-draft, or the router's arms; null decodes without a draft. "ngram" drafts the continuation of
            an earlier occurrence of the text's last tokens, at most four of them ("ngram:6": six); "tiny-draft+ngram"
            chooses between the model, the n-gram draft and both in each round.
        length: Draft length: a number of tokens (default: 4), a controller checkpoint (folder or hub id), a rule such
            as "cumulative-confidence:0.4", or "none" for autoregressive decoding.
        router: Trained router (folder or hub id) that chooses between several drafts by the prompt, such as
            "[a,b,exit:2,autoregressive]". If no draft is given, it uses its own arms. The length is then one for all
            arms, or a list.
        sample_arm: Sample the arm from the router's policy instead of taking the most probable one.
        threshold: Stopping threshold of a trained controller, instead of its checkpoint's.
        cost: File of `specpilot bench cost --output`, or the cost of a draft step in units of a verification, such as
            0.2. A trained controller then stops when another draft token no longer pays, without a threshold. "auto"
            measures the cost at the start and adapts it.
        adapt: Correct the cost by the rounds' wall times; drafts then no longer depend on the seed alone.
        copies: Trained copy head (folder or hub id), which predicts for n-gram drafts whether the target accepts a
            copied token.
        tree: Draft a tree with this number of children at each level, such as "3x2x1"; "4x1x1" is four chains of three.
            "auto" grows trees node by node as far as that pays by the predictions of `length` (a lag-free or feature
            predictor, or online-confidence) and `cost`.
        verifier: Verification rule: token-wise or block for one chain; spec-infer, mcss (children drawn without
            replacement), k-seq or otm also for trees. These keep the target's distribution. typical, bild and mtad do
            not; their threshold follows a colon, "mtad:0.5". mtjd chooses `length` tokens of the target jointly,
            without a draft.
        beams: Number of beams of mtad and mtjd. Default: 4.
        argmax: Keep the most probable beams instead of sampling them.
        n: Number of independent samples, printed one after another.
        max_new_tokens: Maximum number of new tokens; "auto" is the target's generation_config, else 128.
        temperature: Divides the logits; 0 is greedy. "auto" is the target's generation_config, else 1.
        top_k: Sample from the k most probable tokens; null keeps all. "auto" as for temperature, else 50.
        top_p: Sample from the most probable tokens with this total probability; 1 keeps all. "auto" as for temperature,
            else 1.
        generation_config: "follow" takes sampling settings from the target's generation_config and refuses those that
            are not supported, "ignore" does not read it.
        chat: Apply the tokenizer's chat template, if it has one.
        system: System message of the chat.
        stream: Print the text while it is generated.
        color: Print the complete text with accepted, rejected and target tokens in colour.
        stats: Print counters and rates to standard error.
        json: Print one JSON object with text, tokens, rounds and counters instead of text.
        compile: Compile both models first; useful only for long texts.
        revision: Branch, tag or commit of the target on the hub.
        tokenizer: Whose tokenizer and chat template to take instead of the target's own: a folder or hub id.
    """

    prompt: str = field(default="-", kw_only=False)
    draft: Annotated[str | tuple[str, ...], Several(distinct=False)] | None = "auto"
    length: Annotated[int | str | tuple[int | str, ...], Several(distinct=False)] | None = None
    router: str | None = None
    sample_arm: bool = False
    threshold: Share | None = None
    cost: str | float | None = None
    adapt: bool = False
    copies: str | None = None
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
    revision: str | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.system is not None and not self.chat:
            raise InputError("system: is part of the chat template; leave it or --no-chat out")
        if self.color and self.json:
            raise InputError("color: JSON has no colours; give one of color and json")

    @property
    def drafts(self) -> str | tuple[str, ...] | None:
        """The drafts to load; None if there are none, or if the router names them."""
        return self.draft if self.draft != "auto" else None if self.router is not None else "tiny-draft"


# --------------------------------------------------------------------------------------------------------- serve


@dataclass(frozen=True, kw_only=True)
class ServeOptions(TargetOptions, PlacementOptions, LoadingOptions, DraftPrecisionOptions):
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
        copies: Trained copy head for n-gram drafts; as for `specpilot generate`.
        verifier: Verification rule of chains: token-wise, block, typical or bild.
        generation_config: What is done with the target's generation_config: follow or ignore.
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
    copies: str | None = None
    verifier: str = "token-wise"
    generation_config: Literal["follow", "ignore"] = "follow"
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
class DecodeBenchOptions(WorkloadOptions, DraftPrecisionOptions, PairCheckOptions, RepeatOptions):
    """Benchmark.

    Attributes:
        controller: Trained acceptance predictor for this pair (folder or hub id); the shipped pair has a default.
        plot: File for the plot.
    """

    controller: str | None = None
    plot: Picture = Path("runs/decode.png")


@dataclass(frozen=True, kw_only=True)
class NgramBenchOptions(WorkloadOptions, DraftPrecisionOptions, RepeatOptions, OutputFileOptions):
    """Benchmark.

    Attributes:
        limit: Number of prompts of builtin-copy, which invite copying, and of --prompts each.
        lengths: Length controllers of the draft model, alone and with n-grams; the best of each is compared.
        cost: File of `specpilot bench cost --output`, or the cost of a draft step in units of a verification. Default:
            measured at the start.
        copies: Trained copy head of the target: n-grams and the mix are timed with and without it.
    """

    limit: Count = 40
    lengths: Annotated[tuple[int | str, ...], Several()] = (2, 4, "cumulative-confidence:0.4")
    cost: str | None = None
    copies: str | None = None


@dataclass(frozen=True, kw_only=True)
class BatchBenchOptions(WorkloadOptions, DraftPrecisionOptions, RepeatOptions, OutputFileOptions):
    """Benchmark.

    Attributes:
        requests: Number of requests for the comparison with fixed batches; their budgets vary from 8 to 128 tokens.
        running: Number of requests that run together.
        shape: Use a Llama with random weights instead of the pair; "30x576" has 30 layers of width 576. Prompts are 32
            random tokens, there is no draft, and only continuous batching is measured.
    """

    requests: Count = 64
    running: Count = 16
    shape: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape is not None:
            models = ("target", "draft", "draft_dtype", "compile")
            ignored = (*models, "prompts", "column", "split", "domains", "limit", "skip", "system")
            self.refuse_ignored(ignored, f"with shape={self.shape!r} model and prompts are random")


@dataclass(frozen=True, kw_only=True)
class ServedOptions(WorkloadOptions, DraftPrecisionOptions, OutputFileOptions):
    """Benchmark.

    Attributes:
        length: Trained controller that drafts.
        cost: Its cost model: a file of `specpilot bench cost --batch`; by default the server measures it.
    """

    length: str = "tiny-lag-free"
    cost: str | float | None = None


@dataclass(frozen=True, kw_only=True)
class ServeBenchOptions(ServedOptions, RepeatOptions):
    """Benchmark.

    Attributes:
        fixed: Tokens a draft of the server that drafts a fixed length.
        loads: Numbers of requests at once.
        requests: Requests of each measurement; at least the number at once.
    """

    fixed: Count = 2
    loads: Annotated[tuple[Annotated[int, Range(1, 4096)], ...], Several()] = (1, 4, 16, 64)
    requests: Count = 32


@dataclass(frozen=True, kw_only=True)
class SoakOptions(ServedOptions):
    """Benchmark.

    Attributes:
        requests: How many there are altogether.
    """

    requests: Count = 10_000
    max_new_tokens: Count = 24


@dataclass(frozen=True, kw_only=True)
class FaultsOptions(SeedOptions, StudyFolderOptions):
    """Campaign.

    Attributes:
        kills: Times that each stage is killed.
        requests: Requests through one decoder, and through one server.
        stages: Names of the stages, such as "[data acceptance,serve]". Default: all.
        jobs: Stages that run side by side. Default: one for each core.
    """

    kills: Count = 50
    requests: Count = 10_000
    stages: Annotated[tuple[str, ...] | None, Several()] = None
    jobs: Count | None = None
    folder: Folder = Path("runs/faults")


@dataclass(frozen=True, kw_only=True)
class VllmBenchOptions(PairOptions, PromptOptions, SamplingOptions, RepeatOptions, OutputFileOptions):
    """Benchmark.

    Attributes:
        length: Length controller that drafts; a trained one, or online-confidence, goes by the measured costs.
        longest: Most tokens it drafts in a round.
        fixed: Tokens a draft of vLLM's own drafter, an engine for each.
        batches: Number of batches of 64 requests in a repetition.
        checks: Also check that counters, greedy texts and the distribution of sampled texts are vLLM's.
        cost: File for the measured costs, which the plugin reads.
    """

    split: str = "test"
    limit: Count = 20
    length: str = "tiny-lag-free"
    longest: Count = 10
    fixed: Annotated[tuple[Count, ...], Several()] = (1, 2, 3, 4, 5, 6)
    batches: Count = 2
    checks: bool = True
    cost: Path = Path("runs/vllm-cost.json")


@dataclass(frozen=True, kw_only=True)
class MemoryBenchOptions(WorkloadOptions, DraftPrecisionOptions):
    """Benchmark.

    Attributes:
        requests: Number of requests; memory is measured after every 100.
    """

    requests: Count = 1000


@dataclass(frozen=True, kw_only=True)
class TrainScaleBenchOptions(OutputFileOptions):
    """Benchmark.

    Attributes:
        examples: Numbers of drafted tokens to train on.
        hidden_size: Hidden size of the draft.
        width: Hidden units of the lag-free head.
        folder: Folder for temporary random features, of 2 * hidden_size bytes per example.
    """

    examples: Annotated[tuple[Count, ...], Several()] = (250_000, 500_000, 2_000_000)
    hidden_size: Count = 2048
    width: Count = 128
    folder: Path = Path("runs/train-scale")


@dataclass(frozen=True, kw_only=True)
class ProfileBenchOptions(WorkloadOptions, DraftPrecisionOptions):
    """Benchmark.

    Attributes:
        length: Draft length; 0 is autoregressive.
    """

    length: Natural = 5


@dataclass(frozen=True, kw_only=True)
class CostBenchOptions(WorkloadOptions, DraftPrecisionOptions, RepeatOptions, OutputFileOptions):
    """Benchmark. A few prompts suffice; they should not be those that controllers are compared on.

    Attributes:
        repeats: Number of timed repetitions of each generation; forwards are timed ten times as often. Medians are
            taken.
        judge: A trained controller that predicts for every drafted token, so that the costs include its time.
        check: Length controllers, as in `specpilot generate`, whose predicted times are compared with measured ones;
            trained ones use a draft step of 0.2 verifications.
        batch: Numbers of requests whose shared rounds are also timed, such as "[1,4,16,64]"; `specpilot serve` then
            adapts drafts to the number of requests.
        output: File for the JSON that is printed to standard output; `specpilot generate --cost` reads it.
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
class RayBenchOptions(AcceptanceDataOptions, OutputFileOptions):
    """Benchmark.

    Attributes:
        rounds: Number of times that a worker, a node and the driver are killed, each with SIGKILL.
    """

    rounds: Natural = 3
    limit: Count | None = 96
    max_new_tokens: Count = 48
    shard_size: Count = 3
    device: Device = "cpu"


@dataclass(frozen=True, kw_only=True)
class ForwardBenchOptions(PairOptions, LoadingOptions):
    """Benchmark.

    Attributes:
        repeats: Number of timed forwards; medians are reported.
        compile: Also time the compiled path.
    """

    repeats: Count = 50
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class OtmBenchOptions(PairOptions, LoadingOptions):
    """Benchmark.

    Attributes:
        prompt: Text after which the two models' next-token distributions are compared (Figure 5).
        output: File for the plot.
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
        pair: Two of the drafts, each specialised on one of pair_domains, for Table 1 and, with autoregressive, Tables 3
            and 4. Default: the shipped ones for math and for SQL and shell, or else the first two drafts.
        pair_domains: Domains of the pair. Default: math and sql of the built-in prompts, or else all.
        exits: Layers of the target for early-exit drafts (Table 6, and the larger drafts of Figure 2); none for an
            encoder-decoder.
        limit: Number of held-out prompts that are decoded and timed.
        train_limit: Number of training prompts.
        repeats: Number of timed repetitions of routers and single drafts, of which the median is taken; the tables'
            other lengths and exits are timed once.
        work: Folder of the two datasets; they are kept and continued.
        length: Fixed draft length.
        learned: Variable draft length: a rule, or a controller for each draft in order.
        temperatures: Further temperatures of the routers (Tables 13, 14).
        lengths: Fixed lengths (Tables 11, 12).
        examples: Numbers of training prompts (Figure 3); all prompts are added last.
        seeds: Number of trainings for each number of training prompts.
        alphas: Weights of alignment (Figure 2).
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
        """All arms of the dataset."""
        return (*self.drafts, *(f"exit:{layer}" for layer in self.exits), "autoregressive")


@dataclass(frozen=True, kw_only=True)
class QuestionsOptions(WorkloadOptions):
    """Benchmark.

    Attributes:
        task: prompts (any), spec-bench, mt-bench, alpaca, gsm8k, humaneval, spider or xsum. If --prompts is not given,
            a task other than prompts reads its questions from its dataset on the hub.
        databases: Spider's folder of databases.
        run_code: Run generated Python to score it, in a separate process with limits on time and memory.
        length: Draft length, as in `specpilot generate`.
        verifier: Verification rule, as in `specpilot generate`.
        tree: Draft a tree, such as "3x2x1".
        beams: Number of beams of mtad.
        output: Folder for the two files of answers, and for the measurements (records).
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
    """Benchmark. Sampling is that of the papers.

    Attributes:
        validation_limit: Number of other prompts for choosing settings: from the validation split of the built-in
            prompts, or the following prompts of a file.
        train_limit: Number of training prompts of heads (specdecpp) and routers (selection).
        drafts: Drafts to choose between (selection); the first two are each specialised on one of pair_domains.
        pair_domains: Domains of the first two drafts. Default: math and sql of the built-in prompts, or else all.
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
        """The same options for the validation prompts."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(WorkloadOptions)}
        values |= {"split": "validation"} if self.prompts in BUILTIN else {"skip": self.skip + self.limit}
        return WorkloadOptions(**(values | {"limit": self.validation_limit}))


@dataclass(frozen=True, kw_only=True)
class PapersOutputOptions(Options):
    """Output.

    Attributes:
        paper: A paper's name, or all: specdecpp, selection, spectr, mtad.
        output: Folder for the tables, and for the measurements (records).
    """

    paper: str = field(default="all", kw_only=False)
    output: Folder = Path("runs/papers")


@dataclass(frozen=True, kw_only=True)
class HeldOutOptions(PromptSourceOptions):
    """Prompts.

    Attributes:
        in_domain: Training domains of the controllers; the others are only evaluated. Default: math, code, sql and
            prose of the built-in prompts, or else all.
        per_domain: Number of held-out prompts per domain.
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
        ours: Name of the controller that is compared with the rules. Default: the last.
        costs: Cost models: ratios t_draft / t_verify, or files of `specpilot bench cost --output`.
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
        cost: File of `specpilot bench cost --judge CONTROLLER --output`; measured at the start if not given.
        misfit: A draft that fits badly, which is timed as well.
        misfit_controller: Trained controller for the target and that draft.
        misfit_domain: Domain of the prompts that it is timed on.
    """

    controller: str = "tiny-lag-free"
    cost: Path | None = None
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
        train_prompts: Number of training prompts.
        plot: File for the plot. Default: in the folder.
    """

    train_prompts: Count = 2000
    plot: Picture | None = None


@dataclass(frozen=True, kw_only=True)
class SweepOptions(PairOptions, SamplingOptions, HeadStudyOptions):
    """Study. The grid of heads is the paper's (Huang et al. 2024, Tables 1 and 3, Figure 4).

    Training is shorter and its learning rate higher than in the paper, for small heads and a few thousand prompts.

    Attributes:
        data: Acceptance dataset to train the heads on. Default: one is made from the training split of the prompts.
        depths: Residual blocks D of the heads.
        weights: Loss weights of rejection.
        thresholds: Stopping thresholds h.
        lengths: Fixed lengths K to compare with.
        confidences: Thresholds of cumulative confidence to compare with.
        mixing: Share of target tokens in the training texts.
        cost: File of `specpilot bench cost --output`. Default: the costs are measured.
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
        drafts: Draft models; there is a dataset for each draft and temperature.
        temperatures: Temperatures of both models.
        mixings: Shares r of target tokens; 1 uses only the target's text as context.
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
        """Options of a sweep over a single head, trained on ``domains``."""
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
        output: Folder for the dataset, runs, controllers and report. A finished demo in it is replaced.
        prompts: Number of training prompts.
        held_out: Number of prompts on which decoders are compared.
        max_new_tokens: Maximum number of new tokens per answer.
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
