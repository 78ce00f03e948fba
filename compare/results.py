"""Dataclasses of the results of a comparison.

``report.json`` is :meth:`.Report.to_dict`; every sentence, table, picture and command is made from these objects. A
:class:`ComparisonReport` is about decoders on prompts, a :class:`DataReport` about the drafted tokens of a dataset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ..common.machine import Machine
from ..common.record import Record
from ..controllers.acceptance.metrics import Bin
from ..controllers.length.cost_model import CostModel
from ..controllers.sampling import SamplingParams
from ..infer.core import Generation, Stats
from ..infer.options import Auto
from .decoders import ComparedDecoder
from .drift import Drift
from .interval import Interval
from .runner import Timed

# Names of fields in reports of earlier versions, and their current names.
RENAMED = {"priced": "cost_description", "along": "place_grouping"}


def _with_current_names(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a stored report, and of the reports and settings in it, by their current names."""
    fields = {RENAMED.get(name, name): value for name, value in report.items()}
    inner = ((name, fields.get(name)) for name in ("engine_settings", "against"))
    return fields | {name: _with_current_names(value) for name, value in inner if isinstance(value, Mapping)}


@dataclass(frozen=True)
class Task(Record):
    """The task that all decoders have.

    Attributes:
        sampling: sampling parameters.
        max_new_tokens: maximum number of new tokens of a text.
        chat: whether the chat template is applied; in a report true or false, never ``"auto"``.
        system: system message of the chat; None without one.
        seed: seed of every random number.
    """

    sampling: SamplingParams
    max_new_tokens: int
    chat: bool | Auto = "auto"
    system: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class TimedDecoding(Record):
    """Counters and times of one decoding, or the sums over several.

    Attributes:
        generated, drafted, accepted: numbers of tokens.
        target_forwards: number of target forwards.
        seconds, processor_seconds: wall time, and processor time of the process, in seconds.
        joules: energy; None if no counter can be read.
        texts: a digest of each text's tokens.
    """

    generated: int
    drafted: int
    accepted: int
    target_forwards: int
    seconds: float
    processor_seconds: float
    joules: float | None = None
    texts: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, timed: Timed[Generation]) -> TimedDecoding:
        """Return the counters and times of a decoding."""
        stats = timed.value.stats
        digest = hashlib.sha256(str(timed.value.tokens).encode()).hexdigest()[:16]
        return cls(
            stats.n_generated, stats.n_drafted, stats.n_accepted, stats.n_target_forwards, timed.seconds,
            timed.processor_seconds, timed.joules, [digest],
        )  # fmt: skip

    @property
    def stats(self) -> Stats:
        """The counters, which define the rates."""
        return Stats(
            n_generated=self.generated,
            n_drafted=self.drafted,
            n_accepted=self.accepted,
            n_target_forwards=self.target_forwards,
        )

    def __add__(self, other: TimedDecoding) -> TimedDecoding:
        return TimedDecoding(
            self.generated + other.generated,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.target_forwards + other.target_forwards,
            self.seconds + other.seconds,
            self.processor_seconds + other.processor_seconds,
            None if self.joules is None or other.joules is None else self.joules + other.joules,
            self.texts + other.texts,
        )


@dataclass(frozen=True, kw_only=True)
class DecoderResult(Record):
    """The figures of a decoder. A figure that was not measured is None.

    Attributes:
        title: the decoder's name in tables, with the value of a tuned rule.
        family: the name of the rule, if the comparison chose the parameter of the rule.
        spec: the decoder's configuration. For a tuned rule, it has the value that is best on all prompts. None if a
            controller is replayed on a dataset.
        trained: whether one of its controllers was trained.
        replay: speed-up over no drafts by replay, at the costs of the report.
        clock: speed-up over no drafts by wall time.
        processor: speed-up over no drafts by processor time.
        joules: energy for each generated token.
        tokens_per_forward: generated tokens per target forward, as of :attr:`.Stats.tokens_per_forward`.
        accepted: share of the drafted tokens that the target accepted.
        same_texts: number of texts that are the same as without drafts, token for token; None if the rule does not
            promise that, or the texts are not known.
    """

    title: str
    family: str | None = None
    spec: ComparedDecoder | None = None
    trained: bool = False
    replay: Interval | None = None
    clock: Interval | None = None
    processor: float | None = None
    tokens_per_second: float | None = None
    joules: float | None = None
    tokens_per_forward: float | None = None
    accepted: float | None = None
    same_texts: int | None = None

    @property
    def speed(self) -> Interval | None:
        """The speed-up over no drafts by the clock if it was measured, else by replay."""
        return self.clock or self.replay


@dataclass(frozen=True)
class LengthSpeed(Record):
    """The speed-up over no drafts of drafts of one length, by replay.

    Attributes:
        length: the draft length in tokens.
        value: the speed-up.
        low, high: its 95 % interval over prompts.
    """

    length: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PossibleGain(Record):
    """Speed-ups over no drafts on some of the prompts by replay, between those of a rule and of the informed bound.

    Attributes:
        prompts: number of prompts.
        rule, rule_speed: title and speed-up of the fastest decoder without training.
        trained, trained_speed: title and speed-up of the fastest decoder with a trained controller.
        informed: speed-up of a controller that knows the acceptance probability of every token.
        share, low, high: (trained_speed - rule_speed) / (informed - rule_speed), and its 95 % interval over prompts.
            Negative if the rule is faster than the trained decoder. None if the bound is not faster than the rule.
    """

    prompts: int
    rule: str
    rule_speed: float
    trained: str
    trained_speed: float
    informed: float
    share: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class GroupAcceptance(Record):
    """Mean acceptance of a group of drafted tokens.

    Attributes:
        acceptance: the mean acceptance probability.
        tokens, prompts: the number of drafted tokens, and of prompts that they belong to.
        low, high: 95 % interval over prompts; None for few prompts.
    """

    acceptance: float
    tokens: int
    prompts: int
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> Interval:
        if self.low is None or self.high is None:
            return Interval(self.acceptance, self.acceptance, self.acceptance)
        return Interval(self.acceptance, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class PredictorQuality(Record):
    """Quality of a predictor of acceptance, by the metrics of :mod:`specpilot.controllers.acceptance.metrics`.

    Attributes:
        kl, auroc, brier: None if the metric is not defined, as AUROC if all labels are 0 or 1.
        kl_constant, brier_constant: the metric of the best constant prediction, the mean acceptance.
        tokens: number of predictions.
        reliability: predicted and observed acceptance, grouped by prediction.
    """

    kl: float | None
    kl_constant: float | None
    auroc: float | None
    brier: float | None
    brier_constant: float | None
    ece: float | None
    mean_acceptance: float | None
    tokens: int
    reliability: list[Bin]


@dataclass(frozen=True)
class Piece(Record):
    """A piece of a text with one source.

    Attributes:
        by: the source: ``target``, ``draft`` (accepted), ``copy`` (accepted), or ``rejected``, which is no part of the
            text.
        text: the piece.
    """

    by: str
    text: str


@dataclass(frozen=True)
class Sample(Record):
    """Texts of several decoders for one prompt.

    Attributes:
        prompt: the prompt.
        texts: the pieces of each decoder's text, by the decoder's name in tables.
    """

    prompt: str
    texts: dict[str, list[Piece]]


@dataclass(frozen=True, kw_only=True)
class DraftChoice(Record):
    """The best setting of drafts, and its neighbours.

    Attributes:
        length: maximum number of tokens of a draft; 0 if decoding without drafts is the fastest.
        p_min: confidence of the draft below which a draft ends; 0 for drafts of ``length`` tokens.
        speed: expected speed-up over no drafts with its 95 % interval over prompts. With ``length`` 0 it is that of the
            best length above 0.
        neighbours: expected speed-up by length of the next shorter and the next longer draft.
        prompts: number of prompts.
        answer: whether drafting pays, one of :class:`.verdict.Answer`.
    """

    length: int
    p_min: float = 0.0
    speed: Interval
    neighbours: dict[str, float] = field(default_factory=dict)
    prompts: int
    answer: str


@dataclass(frozen=True, kw_only=True)
class EngineSetting(Record):
    """The recommended setting of an engine.

    Attributes:
        engine: name of the engine.
        drafts: source of the drafts: ``draft model``, ``copies``, or ``none``.
        choice: the draft length and its expected speed-up for a single request.
        options: options of the engine's command line, of its configuration file, or Python, in one line.
        schedule: draft length by batch size as (first batch size, last batch size, length); empty if costs by batch
            size are not known.
        schedule_options: options of a schedule that the engine takes in another form, such as a JSON file.
        notes: restrictions.
    """

    engine: str
    drafts: str
    choice: DraftChoice
    options: str
    schedule: list[tuple[int, int, int]] = field(default_factory=list)
    schedule_options: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class EngineSettings(Record):
    """Recommended settings of other engines.

    Attributes:
        engines: the settings, one for each engine.
        groups: the best draft length by grouping of the prompts (``domain``, ``temperature``) and group.
        cost_description: source of the costs in words.
        acceptance: description of the source of the acceptance.
        off_from: smallest batch size from which no draft length pays; None if drafting pays at all measured batch sizes
            or costs by batch size are not known.
        changes: whether the setting should change with the second dataset, in words.
    """

    engines: list[EngineSetting]
    groups: dict[str, dict[str, DraftChoice]] = field(default_factory=dict)
    cost_description: str
    acceptance: str
    off_from: int | None = None
    changes: list[str] = field(default_factory=list)

    def __getitem__(self, engine: str) -> EngineSetting:
        """Return the setting of an engine by its name, such as ``"vLLM"``."""
        for setting in self.engines:
            if setting.engine == engine:
                return setting
        raise KeyError(engine)


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """The fields of both kinds of reports.

    Attributes:
        sentences: the conclusions, the first one to act on.
        commands: commands that decode and serve with the best decoder, by purpose.
        best: name of the fastest decoder.
        verdict: answer to the question whether drafting pays, one of :class:`.verdict.Answer`; None for datasets.
        prompts: number of prompts.
        decoders: results by name.
        informed: speed-up by replay of a controller that knows the acceptance probability of every token; None if it
            was not computed, or is below that of a decoder.
        gains: the share of the possible gain that a trained decoder reaches, by domain; ``all`` has all prompts.
        cost_description: source of the replay's costs in words.
        lengths: speed-ups by draft length.
        place_grouping: the grouping of drafted tokens by a place, ``depth`` in the round or ``position`` in the text;
            None if there are none.
        acceptance: acceptance by grouping of the drafted tokens and by group.
        lines: acceptance by place, of all drafted tokens, and of each domain or temperature.
        predictors: quality of each predictor of acceptance, by group of drafted tokens.
        engine_settings: recommended settings of other engines; None if no acceptance or no costs are known.
    """

    sentences: list[str] = field(default_factory=list)
    commands: dict[str, str] = field(default_factory=dict)
    best: str | None = None
    verdict: str | None = None
    target: str
    draft: str | tuple[str, ...] | None
    prompts: int
    decoders: dict[str, DecoderResult] = field(default_factory=dict)
    informed: float | None = None
    gains: dict[str, PossibleGain] = field(default_factory=dict)
    cost_description: str = ""
    lengths: list[LengthSpeed] = field(default_factory=list)
    place_grouping: str | None = None
    acceptance: dict[str, dict[str, GroupAcceptance]] = field(default_factory=dict)
    lines: dict[str, dict[str, GroupAcceptance]] = field(default_factory=dict)
    predictors: dict[str, dict[str, PredictorQuality]] = field(default_factory=dict)
    engine_settings: EngineSettings | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "") -> Self:
        return super().from_dict(_with_current_names(values), name)


@dataclass(frozen=True, kw_only=True)
class ComparisonReport(Report):
    """Decoders compared on prompts. ``decoders`` has decoding without drafts first, under ``none``.

    Attributes:
        passes: number of times that every prompt was decoded by the clock with every decoder.
        verifier: verification rule of the chains that are replayed; empty without a draft.
        reading: t_v(3) / t_v(1), the time of a target forward over 3 tokens to that over one; None if not measured.
        ratio: time of one more drafted token to that of a round without drafts; None without costs.
        costs: costs by decoder, with the time of its predictor; ``none`` has those of the pair.
        timed: decodings by the clock, by decoder and prompt, summed over the passes.
        refused: reasons why decoders were left out, by the name of the decoder.
        trained_on: ids of the prompts that a decoder's controllers were trained on, by its name.
        trained_for: verification rules of decoders whose controller was trained for another rule than ``verifier``,
            by the name of the decoder.
        mosaic: texts of the fastest decoders.
        versions: versions of packages.
    """

    task: Task
    passes: int
    verifier: str = ""
    reading: float | None = None
    ratio: float | None = None
    costs: dict[str, CostModel] = field(default_factory=dict)
    timed: dict[str, list[TimedDecoding]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    trained_on: dict[str, list[str]] = field(default_factory=dict)
    trained_for: dict[str, str] = field(default_factory=dict)
    mosaic: Sample | None = None
    machine: Machine
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class DataReport(Report):
    """The drafted tokens of a dataset, and where acceptance drifted to a second dataset.

    Attributes:
        data: name of the dataset.
        kind: kind of the dataset.
        sampling: the different sampling parameters of its texts; responses may lack a parameter.
        verifier: verification rule of the acceptance; empty if it is not known.
        texts, tokens: number of texts, and of drafted tokens.
        tokens_per_draft_round: mean tokens of a round with a draft; None if no controller drafted.
        costs: costs of the replay; None if there is none.
        notes: sentences about parts of the dataset that were left out, with reasons.
        lengths_by_cost: best draft length of other engines by the time of a draft step in units of a verification;
            empty if the costs of the engine are known, or if too few tokens were drafted.
        against: the report of the second dataset.
        drift: drift of acceptance by grouping of the drafted tokens and by group.
        differs: settings in which both datasets differ, in words.
    """

    data: str
    kind: str
    sampling: list[dict[str, float | int | None]]
    verifier: str = ""
    texts: int
    tokens: int
    tokens_per_draft_round: float | None = None
    costs: CostModel | None = None
    notes: list[str] = field(default_factory=list)
    lengths_by_cost: dict[str, DraftChoice] = field(default_factory=dict)
    against: DataReport | None = None
    drift: dict[str, dict[str, Drift]] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)
