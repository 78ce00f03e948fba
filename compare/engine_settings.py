"""Settings of drafts for other engines: the best draft length, its expected speed-up, and the engine's options.

All functions are pure. They read the acceptance of chains (:mod:`.chains`) and costs, and return
:class:`.results.EngineSettings`. Names and forms of options are those of the engines' documentation, whose versions are
in ``docs/engines.md``.

Engines differ in their drafts. vLLM (by default), SGLang, TensorRT-LLM and llama.cpp draft the most probable token of
the draft model, also for sampled texts. transformers, and vLLM with ``"draft_sample_method": "probabilistic"``, sample
drafts. All engines verify token by token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..common.errors import counted
from ..controllers.length.cost_model import BatchCosts, CostModel
from .chains import P_MIN, Chains, ChainSetting
from .interval import ENOUGH, Interval, show
from .results import DraftChoice, EngineSetting, EngineSettings
from .table import Row
from .verdict import Answer, answer_of

VLLM, SGLANG, TENSORRT, LLAMA, TRANSFORMERS = "vLLM", "SGLang", "TensorRT-LLM", "llama.cpp", "transformers"
MODEL, COPIES, NO_DRAFTS = "draft model", "copies", "none"
VLLM_COPIES = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}  # in --speculative-config
WORTH = 1.01  # factor of speed above which a less usual setting is recommended
TITLE = "Settings for other engines"
STEP_COSTS = (0.02, 0.05, 0.1, 0.2, 0.4)  # times of a draft step in units of a verification, if no costs are known
Groups = Mapping[str, Mapping[str, NDArray[np.bool_]]]  # membership of prompts by grouping and group
Schedule = list[tuple[int, int, int]]

OPTIONS_WITHOUT_DRAFTS = {  # what turns drafting off
    VLLM: "start without --speculative-config",
    SGLANG: "start without --speculative-algorithm",
    TENSORRT: "leave speculative_config out",
    LLAMA: "start without --spec-type and --spec-draft-model",
    TRANSFORMERS: "call generate without assistant_model",
}
GRAPHS = (
    "Model runner V1 of vLLM runs this table with piecewise CUDA graphs only, which costs more than the table gains "
    "for few requests. Runner V2 has full CUDA graphs for each draft length of the table. vLLM ignores the table under "
    "data parallelism."
)
OLD_LLAMA = "Older builds of llama.cpp call these options --draft-max, --draft-min and --draft-p-min."
EAGLE_ONLY = "SGLang reads the file of --speculative-adaptive-config for EAGLE and EAGLE3 drafts only."
OLD_TENSORRT = (
    "Keys of draft_len_schedule are the largest batch sizes of a length, and larger batches do not draft. In releases "
    "before 1.3 keys were the smallest batch sizes."
)
TRANSFORMERS_COSTS = "For transformers, the costs are those of its own rounds, measured here by assisted generation."
TRIMMED = (
    "Other engines do not load this draft, because its folder has only a part of the vocabulary. Export the draft with "
    "--whole-vocabulary, or train it with --vocabulary null."
)
MOVING_THRESHOLD = (
    "transformers changes an assistant_confidence_threshold above 0 while it generates if scikit-learn is installed. "
    "The threshold 0 keeps the draft length."
)


@dataclass(frozen=True)
class Drafting:
    """Speeds of the chains that engines draft.

    Attributes:
        greedy: chains of the draft model's most probable tokens.
        sampled: chains that the draft model samples with the sampling of the request.
        copies: copies by prompt lookup; None if they are not known.
        acceptance: description of the source of the acceptance.
        is_eagle3: whether the draft is an EAGLE-3 draft, which llama.cpp and transformers do not load.
        is_trimmed: whether the draft's folder has only a part of the vocabulary, so that other engines do not load it.
    """

    greedy: Chains
    sampled: Chains
    acceptance: str
    copies: Chains | None = None
    is_eagle3: bool = False
    is_trimmed: bool = False

    def subset(self, rows: NDArray[np.bool_]) -> Drafting:
        """Return the drafting of the prompts where ``rows`` (n,) is true."""
        greedy = self.greedy.subset(rows)
        sampled = greedy if self.sampled is self.greedy else self.sampled.subset(rows)
        return replace(
            self, greedy=greedy, sampled=sampled, copies=None if self.copies is None else self.copies.subset(rows)
        )


@dataclass(frozen=True)
class EngineCosts:
    """Costs of an engine.

    Attributes:
        cost: costs of a round of one request.
        description: source of the costs in words.
        batch: costs by batch size; None if they are not known.
    """

    cost: CostModel
    description: str
    batch: BatchCosts | None = None

    @property
    def single(self) -> CostModel:
        """The costs of a round of one request, from the costs by batch size if they are known."""
        return self.cost if self.batch is None else self.batch.at(1)


def settings_of(
    drafting: Drafting,
    costs: EngineCosts,
    draft: str | None = None,
    groups: Groups | None = None,
    transformers: CostModel | None = None,
) -> EngineSettings | None:
    """Return the recommended settings of all engines that load such a draft; None if no speed is known.

    Args:
        costs: costs of the engines.
        draft: name of the draft model; None if it is not known. Options then have no name of a model.
        groups: groups of prompts for which the best draft length is computed, too; groups of fewer than ``ENOUGH``
            prompts are left out.
        transformers: costs of transformers' rounds; None for ``costs``.
    """
    choice = choose(drafting.greedy, costs.single)
    if choice is None:
        return None
    table = schedule(drafting.greedy, costs.batch)
    engines = [
        _vllm(drafting, costs, draft),
        _sglang(drafting, costs, draft, table),
        _tensorrt(drafting, costs, draft, table),
    ]
    if not drafting.is_eagle3:
        engines += [_llama(drafting, costs, draft), _transformers(drafting, costs.single, transformers)]
    if drafting.is_trimmed:
        engines = [replace(each, notes=[TRIMMED, *each.notes]) if each.drafts == MODEL else each for each in engines]
    by_group = {
        grouping: {
            group: chosen
            for group, rows in members.items()
            if rows.sum() >= ENOUGH and (chosen := choose(drafting.greedy.subset(rows), costs.single)) is not None
        }
        for grouping, members in (groups or {}).items()
        if len(members) > 1
    }
    return EngineSettings(
        engines=engines,
        groups={grouping: members for grouping, members in by_group.items() if members},
        cost_description=costs.description,
        acceptance=drafting.acceptance,
        off_from=table[-1][0] if table and table[-1][2] == 0 else None,
    )


def choices_by_cost(chains: Chains) -> dict[str, DraftChoice]:
    """Return the best draft length by the time of a draft step in units of a verification; empty if no speed is known.

    The verification of several tokens takes as long as that of one token.
    """
    choices = {f"{step:g}": choose(chains, CostModel.load(step)) for step in STEP_COSTS}
    return {step: choice for step, choice in choices.items() if choice is not None}


def choose(chains: Chains, cost: CostModel, p_mins: Sequence[float] = (0.0,)) -> DraftChoice | None:
    """Return the draft length and the ``p_min`` with the highest expected speed-up; None if no speed is known.

    The length is 0 if no length is expected to be faster than no drafts, or if the 95 % interval of the speed-up ends
    below 1.02. ``speed`` of the result is then still that of the best length above 0.

    Args:
        chains: the acceptance of chains.
        cost: the costs.
        p_mins: only settings with one of these minimum confidences, below which a draft ends, are considered.
    """
    best = chains.best(cost, p_mins)
    if best is None:
        return None
    speed = chains.speed(best, cost)
    answer = answer_of(speed, chains.prompts)
    pays = speed.value > 1 and answer != Answer.DOES_NOT_PAY
    settings = {*chains.settings}
    neighbours = [ChainSetting(best.length + step, best.p_min) for step in (-1, 1)]
    return DraftChoice(
        length=best.length if pays else 0,
        p_min=best.p_min if pays else 0.0,
        speed=speed,
        neighbours={str(setting.length): chains.value(setting, cost) for setting in neighbours if setting in settings},
        prompts=chains.prompts,
        answer=answer.value,
    )


def schedule(chains: Chains, batch: BatchCosts | None) -> Schedule:
    """Return the fastest draft length for each range of batch sizes, as (first, last, length); empty without costs.

    The ranges reach from 1 to the largest measured batch size. The length is 0 where no length is faster than no
    drafts.
    """
    ranges: Schedule = []
    if batch is None:
        return ranges
    for rows in range(1, batch.rows[-1] + 1):
        cost = batch.at(rows)
        best = chains.best(cost)
        length = best.length if best is not None and chains.value(best, cost) > 1 else 0
        if ranges and ranges[-1][2] == length:
            ranges[-1] = (ranges[-1][0], rows, length)
        else:
            ranges.append((rows, rows, length))
    return ranges


def changes_of(
    first: EngineSettings, second: EngineSettings, chains: Chains, cost: CostModel, names: tuple[str, str]
) -> list[str]:
    """Return a sentence about the change of the draft length from one dataset to a second one.

    Args:
        first, second: the settings of both datasets.
        chains: the chains of the second dataset.
        cost: costs of one request.
        names: names of the datasets.
    """
    old, new = (settings[VLLM].choice.length for settings in (first, second))
    if old == new:
        return [f"The draft length need not change from {names[0]} to {names[1]}: {_length(new)} is best in both."]
    change = f"from {_length(old)} to {_length(new)}"
    settings = {setting.length: setting for setting in chains.settings if setting.p_min == 0}
    if not {old, new} - {0} <= {*settings}:
        return [f"The best draft length changed {change}; {names[1]} has no rounds with drafts of both lengths."]
    if old == 0:
        gain = chains.speed(settings[new], cost)
    elif new == 0:
        speed = chains.speed(settings[old], cost)
        gain = Interval(1 / speed.value, 1 / speed.high, 1 / speed.low)
    else:
        gain = chains.ratio(settings[new], settings[old], cost)
    words = f"{show(gain, prompts=chains.prompts)} × the speed in {names[1]}"
    if gain.low > 1 and chains.prompts >= ENOUGH:
        return [f"The draft length should change {change}: that gives {words}."]
    return [f"The draft length need not change: a change {change} gives {words}, within the noise."]


def _length(length: int) -> str:
    """Return a draft length in words."""
    return counted(length, "token") if length else "no drafts"


# engines


def _vllm(drafting: Drafting, costs: EngineCosts, draft: str | None) -> EngineSetting:
    """Return the setting of vLLM; drafts are sampled if that is faster than vLLM's default, greedy drafts."""
    chains, choice = drafting.greedy, _chosen(drafting.greedy, costs.single)
    sampled = _chosen(drafting.sampled, costs.single)
    probabilistic = sampled.length > 0 and sampled.speed.value > WORTH * max(1.0, choice.speed.value)
    if probabilistic:
        chains, choice = drafting.sampled, sampled
    drafts, config = MODEL, dict[str, object]()
    if draft is not None:
        config = {"method": "eagle3" if drafting.is_eagle3 else "draft_model", "model": draft}
    copies = _copies(drafting, costs.single, choice)
    if copies is not None and drafting.copies is not None:
        chains, choice, drafts = drafting.copies, copies, COPIES
        config = {**VLLM_COPIES}
    table = schedule(chains, costs.batch)
    longest = max([choice.length, *(length for *_, length in table)])
    if not longest:
        return _without_drafts(VLLM, choice)
    config["num_speculative_tokens"] = longest
    if probabilistic and drafts == MODEL:
        config["draft_sample_method"] = "probabilistic"
    if _varies(table):
        config["num_speculative_tokens_per_batch_size"] = [list(row) for row in table]
    return EngineSetting(
        engine=VLLM, drafts=drafts, choice=choice, options=f"--speculative-config '{json.dumps(config)}'",
        schedule=table, notes=[GRAPHS] if _varies(table) else [],
    )  # fmt: skip


def _sglang(drafting: Drafting, costs: EngineCosts, draft: str | None, table: Schedule) -> EngineSetting:
    """Return the setting of SGLang, and the file of its adaptive drafting with one length for each batch size."""
    choice = _chosen(drafting.greedy, costs.single)
    if not choice.length:
        return _without_drafts(SGLANG, choice)
    algorithm = "EAGLE3" if drafting.is_eagle3 else "STANDALONE"
    words = "" if draft is None else f"--speculative-algorithm {algorithm} --speculative-draft-model-path {draft} "
    varies = _varies(table)
    # SGLang uses the entry of the nearest batch size, so that both ends of a range are entries.
    adaptive = {str(size): {"candidate_steps": [length]} for low, high, length in table for size in (low, high)}
    return EngineSetting(
        engine=SGLANG, drafts=MODEL, choice=choice,
        options=f"{words}--speculative-num-steps {choice.length} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {choice.length + 1}",
        schedule=table, schedule_options=json.dumps(adaptive) if varies else "",
        notes=[EAGLE_ONLY] if varies and not drafting.is_eagle3 else [],
    )  # fmt: skip


def _tensorrt(drafting: Drafting, costs: EngineCosts, draft: str | None, table: Schedule) -> EngineSetting:
    """Return the setting of TensorRT-LLM; its schedule ends with the largest measured batch size that drafts."""
    choice = _chosen(drafting.greedy, costs.single)
    if not choice.length:
        return _without_drafts(TENSORRT, choice)
    longest = table[0][2] if table and table[0][2] else choice.length  # the schedule's first length is the maximum
    decoding_type = "Eagle3" if drafting.is_eagle3 else "DraftTarget"
    entries = [] if draft is None else [f"decoding_type: {decoding_type}", f"speculative_model: {draft}"]
    entries.append(f"max_draft_len: {longest}")
    varies = _varies(table)
    if varies:
        drafting_ranges = [(high, min(length, longest)) for _, high, length in table]
        while drafting_ranges[-1][1] == 0:  # larger batches do not draft
            drafting_ranges.pop()
        lengths = ", ".join(f"{high}: {length}" for high, length in drafting_ranges)
        entries.append(f"draft_len_schedule: {{{lengths}}}")
    return EngineSetting(
        engine=TENSORRT, drafts=MODEL, choice=choice, options=f"speculative_config: {{{', '.join(entries)}}}",
        schedule=table, notes=[OLD_TENSORRT] if varies else [],
    )  # fmt: skip


def _llama(drafting: Drafting, costs: EngineCosts, draft: str | None) -> EngineSetting:
    """Return the setting of llama.cpp, which can end a draft at a token of low confidence."""
    choice, confident = (_chosen(drafting.greedy, costs.single, p_mins) for p_mins in ((0.0,), P_MIN))
    if confident.length and confident.speed.value > WORTH * max(1.0, choice.speed.value):
        choice = confident
    if not choice.length:
        return _without_drafts(LLAMA, choice)
    words = "" if draft is None else f"--spec-type draft-simple --spec-draft-model {draft} "
    options = f"{words}--spec-draft-n-max {choice.length} --spec-draft-n-min 0 --spec-draft-p-min {choice.p_min:g}"
    return EngineSetting(engine=LLAMA, drafts=MODEL, choice=choice, options=options, notes=[OLD_LLAMA])


def _transformers(drafting: Drafting, cost: CostModel, measured: CostModel | None) -> EngineSetting:
    """Return the setting of transformers: of assisted generation, or of prompt lookup where copies are faster.

    Args:
        cost: costs of the other engines.
        measured: costs of transformers' rounds; None for ``cost``.
    """
    notes = [] if measured is None else [TRANSFORMERS_COSTS]
    cost = cost if measured is None else measured
    choice = _chosen(drafting.sampled, cost)
    copies = _copies(drafting, cost, choice)
    if copies is not None:
        options = f"model.generate(…, prompt_lookup_num_tokens={copies.length}, max_matching_ngram_size=2)"
        return EngineSetting(engine=TRANSFORMERS, drafts=COPIES, choice=copies, options=options, notes=notes)
    if not choice.length:
        return replace(_without_drafts(TRANSFORMERS, choice), notes=notes)
    options = (
        f"assistant.generation_config.update(num_assistant_tokens={choice.length}, "
        'num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0)'
    )
    return EngineSetting(
        engine=TRANSFORMERS, drafts=MODEL, choice=choice, options=options, notes=[*notes, MOVING_THRESHOLD]
    )


def _varies(table: Schedule) -> bool:
    """Return true if the draft length depends on the batch size."""
    return len({length for *_, length in table}) > 1


def _without_drafts(engine: str, choice: DraftChoice) -> EngineSetting:
    """Return the setting of an engine in which drafting does not pay."""
    return EngineSetting(engine=engine, drafts=NO_DRAFTS, choice=choice, options=OPTIONS_WITHOUT_DRAFTS[engine])


def _chosen(chains: Chains, cost: CostModel, p_mins: Sequence[float] = (0.0,)) -> DraftChoice:
    """Return the choice of chains whose speed is known."""
    choice = choose(chains, cost, p_mins)
    assert choice is not None, "the speed of a chain is known"
    return choice


def _copies(drafting: Drafting, cost: CostModel, choice: DraftChoice) -> DraftChoice | None:
    """Return the best length of copies if copies pay and are faster than the draft model; else None."""
    if drafting.copies is None:
        return None
    copies = choose(drafting.copies, cost)
    if copies is None or not copies.length or copies.speed.value <= choice.speed.value:
        return None
    return copies


# presentation


def rows_of(settings: EngineSettings) -> list[Row]:
    """Return the table of the settings, without the options."""
    return [
        {
            "engine": setting.engine,
            "drafts": setting.drafts,
            "tokens": f"{setting.choice.length}",
            "p_min": f"{setting.choice.p_min:g}" if setting.choice.p_min else "",
            **_speeds(setting.choice),
        }
        for setting in settings.engines
    ]


def _is_longest(choice: DraftChoice) -> bool:
    """Return true if the speed of a longer draft is not known."""
    return str(choice.length + 1) not in choice.neighbours


def group_rows(settings: EngineSettings) -> list[Row]:
    """Return the table of the best draft length of each group, for greedy drafts of a fixed length."""
    return [
        {"group": f"{grouping} {group or 'unknown'}", "tokens": f"{choice.length}", "prompts": f"{choice.prompts}",
         **_speeds(choice)}
        for grouping, groups in settings.groups.items()
        for group, choice in groups.items()
    ]  # fmt: skip


def cost_rows(choices: Mapping[str, DraftChoice]) -> list[Row]:
    """Return the table of the best draft length by the time of a draft step in units of a verification."""
    return [
        {"draft step / verification": step, "tokens": f"{choice.length}", **_speeds(choice)}
        for step, choice in choices.items()
    ]


def _speeds(choice: DraftChoice) -> Row:
    """Return the cells of the expected speed-up, and of those of the neighbours."""
    near = [f"{length}: {value:.2f}" for length, value in choice.neighbours.items()]
    return {"expected speed-up": show(choice.speed, prompts=choice.prompts), "other lengths": ", ".join(near)}


def option_lines(settings: EngineSettings) -> dict[str, str]:
    """Return the options of each engine in one line, by engine, and files of engines by a longer name."""
    lines = {}
    for setting in settings.engines:
        lines[setting.engine] = setting.options
        if setting.schedule_options:
            lines[f"{setting.engine}, file of --speculative-adaptive-config"] = setting.schedule_options
    return lines


def remarks_of(settings: EngineSettings) -> list[str]:
    """Return sentences about the settings: where drafting does not pay, the assumptions, and restrictions."""
    lines = [*settings.changes]
    undecided = [setting.engine for setting in settings.engines if setting.choice.answer == Answer.UNDECIDED.value]
    if all(setting.drafts == NO_DRAFTS for setting in settings.engines):
        lines.append("No setting is expected to be faster than no drafts. Leave drafting off.")
    if settings.off_from is not None:
        sizes = f"from {counted(settings.off_from, 'request')}" if settings.off_from > 1 else "at every batch size"
        lines.append(f"Drafting is off {sizes}: no draft length pays there.")
    longest = [setting for setting in settings.engines if setting.choice.length and _is_longest(setting.choice)]
    if longest:
        length = max(setting.choice.length for setting in longest)
        lines.append(f"No draft longer than {_length(length)} was recorded. A longer one may be faster.")
    if undecided:
        lines.append(f"These prompts cannot decide whether drafting pays in {', '.join(undecided)}.")
    lines.append(
        f"Expected speed-ups of a single request over no drafts, at {settings.cost_description}. {settings.acceptance} "
        "If an engine has other costs, measure them and pass the file with --engine-cost."
    )
    return [*lines, *dict.fromkeys(note for setting in settings.engines for note in setting.notes)]
