"""Options of comparisons and measurements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..common.options import (
    Count,
    File,
    Folder,
    Options,
    OutputFileOptions,
    Positive,
    SeedOptions,
    Several,
)
from ..data_gen.options import PromptOptions
from ..infer.options import (
    DecodingOptions,
    DraftPrecisionOptions,
    LoadingOptions,
    PairCheckOptions,
    PairOptions,
    SamplingOptions,
    TargetOptions,
)

OF_DECODING = (
    "decoders", "prompts", "skip", "domains", "temperature", "top_k", "top_p", "max_new_tokens", "chat", "system",
    "rules", "clock", "minutes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RepeatOptions(Options):
    """Measurement.

    Attributes:
        repeats: Number of timed repetitions; medians are reported.
    """

    repeats: Count = 3


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions(
    TargetOptions, PromptOptions, SamplingOptions, LoadingOptions, DraftPrecisionOptions, PairCheckOptions
):
    """Models.

    Attributes:
        draft: Draft model of the decoders that name none; null compares without one.
    """

    draft: str | None = "tiny-draft"
    split: str = "test"

    @property
    def base(self) -> DecodingOptions:
        """What all decoders have in common."""
        return DecodingOptions(
            target=self.target, draft=self.draft, draft_dtype=self.draft_dtype, pair_check=self.pair_check,
            dtype=self.dtype, device=self.device, trust_remote_code=self.trust_remote_code,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(PairOptions, MeasurementOptions):
    """Models."""

    limit: Count = 20


@dataclass(frozen=True, kw_only=True)
class CompareOptions(MeasurementOptions, SeedOptions):
    """Comparison.

    Attributes:
        target: Target model: a shipped model, a folder, a hub id, perhaps with a revision (owner/name@v1), or a GGUF
            file. "auto" is the one that the first trained controller of `length` was made for, else tiny.
        draft: Draft model of the decoders that name none; null compares without one. "auto" as for target, else
            tiny-draft.
        decoders: YAML file of decoders: for each name a word as for `length`, or options of `specpilot generate`.
        length: Decoders in words, with commas between them: draft lengths, rules and trained controllers as for
            `specpilot generate`, with "+ngram" behind them to copy from the text as well; "ngram", "default" (what
            `specpilot generate` does without a length), "transformers", "transformers:assisted-3",
            "transformers:lookup-10". Default: "default", the same without copies, and for
            the included pair what was trained for it.
        rules: Also compare the best fixed length and the best threshold on cumulative confidence.
        cost: Costs for the replay and for what decides by costs, instead of measured ones: a file of `specpilot bench
            cost --output`, or a draft step in units of a verification.
        data: Instead of decoding: a folder of acceptance data or of rounds (`data on-policy`, `serve --log-rounds`), or
            several of one pair, as "[A,B]". Their draft is that of the data unless `draft` names it. Or JSON of a vLLM
            server's responses.
        against: Another such folder, or several: where acceptance drifted from `data` to it.
        clock: Also decode by the clock, every prompt with every decoder in turn; --no-clock replays alone.
        minutes: Time that decides how many of the prompts are taken, and how often. Loading the models and measuring
            costs count, too; half of the time is for decoding at least.
        wandb: Weights & Biases project to log the report to, as PROJECT or TEAM/PROJECT; offline if WANDB_API_KEY is
            not set or the server cannot be reached.
        output: Folder for report.html, report.md, report.json and what was measured; an interrupted comparison is
            continued.
    """

    target: str = "auto"
    draft: str | None = "auto"
    decoders: File | None = None
    length: str | int | tuple[str | int, ...] | None = None
    rules: bool = True
    cost: str | float | None = None
    data: Annotated[str | tuple[str, ...], Several()] | None = None
    against: Annotated[str | tuple[str, ...], Several()] | None = None
    clock: bool = True
    minutes: Positive = 2.0
    wandb: str | None = None
    output: Folder = Path("runs/compare")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is not None:
            self.refuse_ignored(OF_DECODING, "nothing is decoded with --data")

    @property
    def words(self) -> list[str]:
        """The decoders of ``length``, or those that are compared if none are named."""
        if self.length is not None:
            words = self.length if isinstance(self.length, tuple) else str(self.length).split(",")
            return [str(word).strip() for word in words]
        if self.decoders is not None:
            return []
        if self.draft is None:
            return ["ngram"]
        trained = ["tiny-lag-free"] if (self.target, self.draft) == ("tiny", "tiny-draft") else []
        return [*(word + copying for word in trained for copying in ("", "+ngram")), "default", "online-confidence"]


@dataclass(frozen=True, kw_only=True)
class CostBenchOptions(WorkloadOptions, RepeatOptions, OutputFileOptions):
    """Benchmark. A few prompts suffice; they should not be those that controllers are compared on.

    Attributes:
        repeats: Number of timed repetitions of each generation; forwards are timed ten times as often. Medians are
            taken.
        judge: A trained controller whose decisions' time is added to the costs.
        output: File for the JSON that is printed to standard output; `specpilot generate --cost` reads it.
    """

    split: str = "train"
    limit: Count = 4
    max_new_tokens: Count = 64
    repeats: Count = 5
    judge: str | None = None
    output: File | None = None
