"""Options of prompts and datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from ..common.errors import InputError
from ..common.options import (
    Count,
    File,
    Folder,
    Names,
    Natural,
    Objects,
    Options,
    Pattern,
    Positive,
    Range,
    SeedOptions,
    Several,
    WebAddress,
)
from ..infer.options import (
    Auto,
    LengthOptions,
    LoadingOptions,
    PairOptions,
    PlacementOptions,
    SamplingOptions,
    TargetOptions,
    check_system,
)

HostPort = Annotated[
    str, Pattern(r"[^/:]+:\d{1,5}", "not the address of a head node; give HOST:PORT, such as 10.0.0.1:6379")
]


BUILTIN = ("builtin", "builtin-large", "builtin-copy")


class PromptSourceKeywords(TypedDict):
    """The fields of :class:`PromptSourceOptions`."""

    prompts: str
    column: str | None
    split: str
    domains: tuple[str, ...] | None
    chat: bool | Auto
    system: str | None


@dataclass(frozen=True, kw_only=True)
class PromptSourceOptions(Options):
    """Prompts.

    The source of prompts, and their form.

    Attributes:
        prompts: builtin, builtin-large, builtin-copy, a JSON Lines, CSV, Parquet or text file, a folder of such files,
            or the id of a dataset on the hub.
        column: Column with the prompt or conversation. By default, the first column with a usual name, such as prompt.
            Columns named id and domain are used if present.
        split: Split of the built-in prompts (train, validation, test), of a hub dataset or of a saved DatasetDict.
            Files have no splits.
        domains: Use only prompts of these domains.
        chat: Apply the tokenizer's chat template; --no-chat continues prompts as plain text. "auto" applies it if the
            tokenizer has one.
        system: System message of the chat.
    """

    prompts: Annotated[str, Objects()] = "builtin"
    column: str | None = None
    split: str = "train"
    domains: Names | None = None
    chat: bool | Auto = "auto"
    system: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_system(self.system, self.chat)
        prompts: Any = self.prompts  # in Python also rows, which have no name
        if isinstance(prompts, str) and prompts in BUILTIN:
            self.refuse_ignored(("column",), "the built-in prompts have no columns")
        elif self.local:
            self.refuse_ignored(("split", "train_split"), f"{self.prompts!r} is a file or folder and has no splits")

    @property
    def source(self) -> PromptSourceKeywords:
        """The fields as keywords, for other options with the same prompts."""
        return {
            "prompts": self.prompts, "column": self.column, "split": self.split, "domains": self.domains,
            "chat": self.chat, "system": self.system,
        }  # fmt: skip

    @property
    def local(self) -> bool:
        """Return true if the prompts are in a local file or folder without splits."""
        prompts: Any = self.prompts
        if not isinstance(prompts, str) or prompts in BUILTIN:
            return False
        path = Path(prompts).expanduser()
        return path.exists() and not (path / "dataset_dict.json").is_file()


@dataclass(frozen=True, kw_only=True)
class PromptOptions(PromptSourceOptions):
    """Prompts.

    The source of prompts, their form and their number.

    Attributes:
        limit: Maximum number of prompts.
        skip: Number of prompts to skip first.
    """

    limit: Count | None = None
    skip: Natural = 0


@dataclass(frozen=True, kw_only=True)
class BatchOptions(Options):
    """Many prompts.

    Options of ``specpilot generate`` for a file of prompts.

    Attributes:
        prompts: File, folder or hub dataset of prompts or conversations, as for `specpilot data`, instead of a single
            prompt. The prompts are decoded together.
        output: JSON Lines file with a text for each prompt, in the prompts' order. The same command continues an
            interrupted run.
        column: Column with the prompt or conversation. By default, the first column with a usual name, such as prompt.
        split: Split of the built-in prompts, of a hub dataset or of a saved DatasetDict.
        limit: Maximum number of prompts.
        trace: Also write the tokens and rounds of each text.
    """

    prompts: str | None = None
    output: File | None = None
    column: str | None = None
    split: str = "train"
    limit: Count | None = None
    trace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompts is None:
            self.refuse_ignored(("output", "column", "split", "limit", "trace"), "no file of prompts is given")
        elif self.output is None:
            raise InputError(f"prompts={self.prompts!r}: the texts need a file; add --output FILE.jsonl")
        else:
            PromptSourceOptions(prompts=self.prompts, column=self.column, split=self.split)  # checks them together


@dataclass(frozen=True, kw_only=True)
class TextFormOptions(Options):
    """Data.

    The form of texts from which drafts are trained or trimmed.

    Attributes:
        column: Column with the prompt or conversation. By default, the first column with a usual name, such as prompt.
        answer_column: Column with the answer; none learns only prompts. By default, the first column with a usual name,
            such as answer.
        split: Split of a hub dataset or a saved DatasetDict.
        chat: Join prompt and answer by the tokenizer's chat template; --no-chat appends the answer to the prompt.
            "auto" uses the template if the tokenizer has one.
        limit: Maximum number of texts of each source.
    """

    column: str | None = None
    answer_column: str | None = None
    split: str = "train"
    chat: bool | Auto = "auto"
    limit: Count | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(PromptOptions, SamplingOptions, LoadingOptions, SeedOptions):
    """Dataset. Every field that its rows depend on is part of its identity.

    Options of every dataset that is made from prompts.

    Attributes:
        max_prompt_tokens: Skip prompts with more tokens. By default, a prompt that fills the context is an error.
        batch_size: Number of prompts that are decoded together.
        shard_size: Number of prompts in a shard; an interrupted run loses at most one shard.
    """

    max_prompt_tokens: Count | None = None
    batch_size: Count = 64
    shard_size: Count = 256


@dataclass(frozen=True, kw_only=True)
class RuleOptions(Options):
    """Labels.

    The option of datasets with labels of acceptance.

    Attributes:
        verifier: Verification rule that the labels are for: a label is the probability that the rule accepts a drafted
            token. Decoding uses invariant with a seed and a temperature above 0, and token-wise otherwise.
    """

    verifier: Literal["token-wise", "invariant"] = "token-wise"


@dataclass(frozen=True, kw_only=True)
class AcceptanceDataOptions(PairOptions, RuleOptions, PlacementOptions, DatasetOptions):
    """Acceptance dataset.

    The settings of a dataset of ``specpilot data acceptance``.
    """


@dataclass(frozen=True, kw_only=True)
class AnswersDataOptions(TargetOptions, PlacementOptions, DatasetOptions):
    """Dataset of the target's own answers.

    The settings of a dataset of ``specpilot data answers``.
    """


@dataclass(frozen=True, kw_only=True)
class OnPolicyDataOptions(AcceptanceDataOptions, LengthOptions):
    """Dataset of the decoder's rounds.

    The settings of a dataset of ``specpilot data on-policy``.
    """

    length: int | str = "8"


ARMS = ("tiny-draft", "tiny-draft-code-prose", "tiny-draft-math", "tiny-draft-sql-shell", "autoregressive")


@dataclass(frozen=True, kw_only=True)
class RouterDataOptions(TargetOptions, RuleOptions, PlacementOptions, DatasetOptions):
    """Router dataset.

    The settings of a dataset of ``specpilot data router``.

    Attributes:
        arms: The router's arms in order: draft models, exit:LAYER (the first layers of the target draft), ngram (copies
            from the text), and autoregressive (no draft).
    """

    arms: Annotated[tuple[str, ...], Several(2)] = ARMS
    max_new_tokens: Count = 64


@dataclass(frozen=True, kw_only=True)
class DatasetFolderOptions(Options):
    """Output.

    The output of commands that write a dataset.

    Attributes:
        output: Folder of the dataset: shards and a manifest. The same command continues an unfinished dataset.
        plan: Print the planned work, its size on disk and its duration; write nothing.
    """

    output: Folder
    plan: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Options):
    """Workers.

    The processes that make a dataset.

    Attributes:
        workers: Number of workers on a Ray cluster, each with its own device and models. The shards are the same bytes
            for any number of workers, on CPUs if OMP_NUM_THREADS is the same. By default, this process loads the models
            and there are no workers.
        ray: Address of the cluster's head node, such as 10.0.0.1:6379. By default, a cluster on this machine is
            started.
        gpus_per_worker: Number of GPUs of each worker if the cluster has GPUs. More than one is for a target with a
            --device-map.
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

    Options of ``specpilot data acceptance`` for texts of the target that another engine generates.

    Attributes:
        responses: Engine that generates the target's texts; this command then labels them. openai: a server with
            OpenAI's completions API. vllm: vLLM in this process, or in each worker. By default, specpilot generates the
            texts.
        base_url: Address of the server, such as http://localhost:8000/v1. The environment variable OPENAI_API_KEY is
            sent as the key.
        model: Name of the target on the server. By default, the name of --target.
        retries: Number of times that a request is sent again if the server is busy or cannot be reached.
        timeout: Seconds to wait for a text.
        tensor_parallel: Number of GPUs among which vLLM divides the target.
        kv_cache_gib: Memory of vLLM's KV cache in GiB. By default, vLLM decides.
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
