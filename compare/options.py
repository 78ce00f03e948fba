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

    The option of commands that time something several times.

    Attributes:
        repeats: Number of timed repetitions; the report has their medians.
    """

    repeats: Count = 3


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions(
    TargetOptions, PromptOptions, SamplingOptions, LoadingOptions, DraftPrecisionOptions, PairCheckOptions
):
    """Models.

    Options of measurements that decode prompts, with or without a draft model.

    Attributes:
        draft: Draft model of the decoders that do not name one; null compares without a draft model.
    """

    draft: str | None = "tiny-draft"
    split: str = "test"

    @property
    def base(self) -> DecodingOptions:
        """The decoding options that all decoders share."""
        return DecodingOptions(
            target=self.target, draft=self.draft, draft_dtype=self.draft_dtype, pair_check=self.pair_check,
            dtype=self.dtype, device=self.device, trust_remote_code=self.trust_remote_code,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(PairOptions, MeasurementOptions):
    """Models.

    Options of measurements that decode prompts with a draft model.
    """

    limit: Count = 20


@dataclass(frozen=True, kw_only=True)
class CompareOptions(MeasurementOptions, SeedOptions):
    """Comparison.

    Options of ``specpilot compare``.

    Attributes:
        target: Target model: a shipped model, a folder, a hub id, optionally with a revision (owner/name@v1), or a GGUF
            file. "auto" is the target of the first trained controller in `length`, or tiny if there is none.
        draft: Draft model of the decoders that do not name one; null compares without a draft model. "auto" is the
            draft of the first trained controller in `length`, or tiny-draft if there is none.
        decoders: YAML file of decoders: their names, each with options of `specpilot generate` or with a word as in
            `length`.
        length: Decoders as words with commas between them. A word is a draft length, a rule or a trained controller as
            for `specpilot generate`, optionally followed by "+ngram" to copy from the text, too. Other words are
            "ngram", "default" (the drafts of `specpilot generate` without a length), "transformers",
            "transformers:assisted-3" and "transformers:lookup-10". Without this option: "default",
            "online-confidence", and the trained controllers of the included pair.
        rules: Also compare the best fixed length and the best threshold on cumulative confidence.
        cost: Costs for the replay (the simulation of other decoders on the recorded texts) and for decoders that use
            costs, instead of measured costs: a file of `specpilot bench cost --output`, or the time of a draft step in
            units of a verification.
        engine_cost: Costs of another engine, for the settings that the report recommends for it: a file of
            `specpilot-vllm bench --cost`, which has costs by batch size, a file of `specpilot bench cost --output`, or
            the time of a draft step in units of a verification. Default: the costs of the replay.
        data: Report on a dataset instead of decoding: a folder of acceptance data or of rounds (`data on-policy`,
            `serve --log-rounds`), several such folders of one pair as "[A,B]", or JSON files of a vLLM server's
            responses. The draft is that of the data unless `draft` names it.
        against: Second dataset, in the same form as `data`; the report shows where acceptance differs from the first.
        clock: Also measure the time of decoding every prompt with every decoder. With --no-clock, the report has only
            replayed speeds.
        minutes: Minutes that the comparison may take. They limit the number of prompts and of passes over the prompts.
            Loading models and measuring costs count as well. At least half of the minutes remain for decoding; the
            command prints a line if it therefore takes longer.
        wandb: Weights & Biases project for the report, as PROJECT or TEAM/PROJECT. The report is logged offline if
            WANDB_API_KEY is not set or the server cannot be reached.
        output: Folder for report.html, report.md, report.json and all measurements. The same command continues an
            interrupted comparison.
    """

    target: str = "auto"
    draft: str | None = "auto"
    decoders: File | None = None
    length: str | int | tuple[str | int, ...] | None = None
    rules: bool = True
    cost: str | float | None = None
    engine_cost: str | float | None = None
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
        """The words of ``length``, or the words of the default decoders."""
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
    """Benchmark. A few prompts suffice. Do not use the prompts on which controllers are compared.

    Options of ``specpilot bench cost``.

    Attributes:
        repeats: Number of timed repetitions of each generation. Forwards are timed ten times as often. Medians are
            used.
        judge: Trained controller; the time of its decisions is added to the costs.
        output: File for the JSON that is printed to standard output. `specpilot generate --cost` reads the file.
    """

    split: str = "train"
    limit: Count = 4
    max_new_tokens: Count = 64
    repeats: Count = 5
    judge: str | None = None
    output: File | None = None
