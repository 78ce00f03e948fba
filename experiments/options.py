"""Options of the experiments."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

from specpilot.common.errors import InputError
from specpilot.common.options import (
    Count,
    Folder,
    Fraction,
    Names,
    Natural,
    NotNegative,
    Options,
    OutputFileOptions,
    Picture,
    Place,
    Positive,
    Range,
    SeedOptions,
    Several,
    Share,
)
from specpilot.compare.options import HeldOutOptions, RepeatOptions, ServedOptions, StudyFolderOptions, WorkloadOptions
from specpilot.data_gen.options import BUILTIN, AcceptanceDataOptions, PromptSourceOptions, TrainSplitOptions
from specpilot.infer.options import (
    MAX_LENGTH,
    Device,
    DeviceOptions,
    DraftPrecisionOptions,
    LoadingOptions,
    PairCheckOptions,
    PairOptions,
    SamplingOptions,
    TargetOptions,
    TruncationOptions,
)
from specpilot.train.options import Depth, FittingOptions


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
            models = ("target", "draft", "draft_dtype")
            ignored = (*models, "prompts", "column", "split", "domains", "limit", "skip", "system")
            self.refuse_ignored(ignored, f"with shape={self.shape!r} model and prompts are random")


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
