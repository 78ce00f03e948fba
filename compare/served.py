"""``specpilot compare --data``: acceptance, calibration and replayed lengths of a dataset, and its drift from another.

Nothing is generated, and the target is not needed. Acceptance data has a label at every position, so that lengths can
be replayed: whether a token is accepted is drawn with its label, and after a rejected token the draft is taken to
continue with the confidences that it has along the text. Data of rounds has the tokens that were drafted up to the
first rejected one, and shows what was decoded. Pure functions from :class:`.Labelled` to a :class:`.DataReport`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..common.errors import InputError, counted
from ..controllers.length import RateOptimal
from ..controllers.length.cost_model import CostModel
from ..infer.random_source import drawn_for
from ..simulate.replay import PrecomputedPredictor
from ..simulate.trace import END, Trace
from .chains import (
    COPY_GRID,
    FEW,
    GRID,
    LENGTHS,
    WIDTH,
    Chains,
    ChainSetting,
    LoggedChains,
    ReplayedChains,
    replay_chain,
)
from .decoders import NONE
from .drafted import ALL, DRAFT_CONFIDENCE, UNKNOWN, drift_of, judgements
from .engine_settings import Drafting, EngineCosts, changes_of, choices_by_cost, settings_of
from .interval import Interval, show
from .labelled import Labelled, Reading, predicted
from .recorded import INFORMED, Counts, Rule, Setting, informed_rule, rates, replay_rule, speed_of
from .report import difference, group_name
from .results import DataReport, DecoderResult, EngineSettings
from .settings import FAMILIES, FIXED, by_length, crossed, rule_of, tuned, word_of
from .verdict import Answer, answer_of


def report_of(
    sides: Sequence[Labelled],
    cost: CostModel | None = None,
    cost_description: str = "",
    engine_costs: EngineCosts | None = None,
) -> DataReport:
    """Return the report of a dataset, with a second dataset also of the drift of acceptance to it.

    Args:
        sides: the dataset, or the dataset and the second one.
        cost: costs of the replay, in seconds. Without costs, the report has tokens per target forward instead of
            speeds.
        cost_description: source of ``cost`` in words.
        engine_costs: costs for the settings of other engines. Without them, the report has no such settings.

    Raises:
        InputError: the datasets are of different pairs.
    """
    first, *further_sides = sides
    report = describe(first, cost, cost_description, engine_costs)
    lines = sentences(report)
    for second in further_sides:
        pairs = [side.sources[0].fingerprint for side in (first, second)]
        if None not in pairs and pairs[0] != pairs[1]:
            raise InputError(
                f"against={second.name!r}: is of another pair than {first.name}; give a dataset of the same models"
            )
        against = describe(second, cost, cost_description, engine_costs)
        drift = drift_of(first.drafted, second.drafted)
        report = replace(report, against=against, drift=drift, differs=_differing(first, second))
        report = replace(report, engine_settings=_with_changes(report, against, second, engine_costs))
        lines = [*drift_sentences(report, against), *lines]
    return replace(report, sentences=lines, notes=[*report.notes, *_missing_settings(report, engine_costs)])


def _missing_settings(report: DataReport, engine_costs: EngineCosts | None) -> list[str]:
    """Return a sentence about the reason why the report has no settings for other engines; empty if it has some."""
    if report.engine_settings is not None:
        return []
    if engine_costs is not None or not report.lengths_by_cost:
        return [
            f"The report has no settings for other engines: fewer than {FEW} drafted tokens were verified at the first "
            "token of a round. Log more rounds."
        ]
    return [
        "The report has no settings for other engines, because their costs are not known. Pass --engine-cost with a "
        "file of specpilot bench cost --output, or with the time of a draft step in units of a verification, such as "
        "0.1."
    ]


def describe(
    data: Labelled, cost: CostModel | None = None, cost_description: str = "", engine_costs: EngineCosts | None = None
) -> DataReport:
    """Return the report of a dataset, without sentences; arguments as for :func:`report_of`."""
    first, drafted = data.sources[0], data.drafted
    report = DataReport(
        data=data.name,
        kind=first.kind,
        target=first.target,
        draft=first.draft,
        sampling=[*{str(source.sampling): dict(source.sampling) for source in data.sources}.values()],
        verifier=first.verifier,
        texts=len(data.texts),
        prompts=len({*data.prompts}),
        tokens=len(drafted.accept),
        tokens_per_draft_round=tokens_per_draft_round(data) if data.is_rounds else None,
        place_grouping=drafted.place_grouping,
        acceptance=drafted.acceptance(),
        lines=drafted.lines(),
        predictors=drafted.quality(),
        costs=cost,
        cost_description=cost_description,
        notes=data.notes,
        lengths_by_cost={} if engine_costs is not None else choices_by_cost(chains_of(data, COPY_GRID)[1]),
        engine_settings=None if engine_costs is None else _settings(data, engine_costs),
    )
    return with_replay(report, data, cost)


def _settings(data: Labelled, engine_costs: EngineCosts) -> EngineSettings | None:
    """Return the settings of other engines, by domain and temperature; None if too few tokens were drafted."""
    names, chains = chains_of(data)
    rule = f" by the verification rule {data.sources[0].verifier}" if data.sources[0].verifier else ""
    acceptance = (
        f"Acceptance{rule} is that of the drafts in {data.name}. An engine that drafts in another way, greedily or by "
        "sampling, has another acceptance at temperatures above 0."
    )
    drafting = Drafting(greedy=chains, sampled=chains, acceptance=acceptance, is_eagle3=bool(data.eagle3))
    labels = {
        "domain": [*data.domains],
        "temperature": [
            UNKNOWN if (value := source.sampling.get("temperature")) is None else f"{value:g}"
            for source in data.sources
        ],
    }
    groups = {}
    for grouping, of_texts in labels.items():
        label_of = dict(zip(names, of_texts, strict=True))
        values = np.array([label_of[name] for name in dict.fromkeys(names)])
        groups[grouping] = {str(value): values == value for value in dict.fromkeys(values.tolist())}
    return settings_of(drafting, engine_costs, data.eagle3 or None, groups)


def chains_of(data: Labelled, grid: Sequence[ChainSetting] = GRID) -> tuple[list[str], Chains]:
    """Return the prompt of each text, and the chains of a dataset, whose rows are these prompts.

    Prompts at different temperatures are different rows. Acceptance data whose texts the draft has read is replayed.
    Other data has the accepted and verified tokens at each token of a round; acceptance data without a draft has the
    same acceptance at each token of a round.

    Args:
        grid: the settings that are replayed.
    """
    names = [
        f"{prompt} {source.sampling.get('temperature')}"
        for prompt, source in zip(data.prompts, data.sources, strict=True)
    ]
    row_of = {name: row for row, name in enumerate(dict.fromkeys(names))}
    read = [(i, reading) for i, reading in enumerate(data.readings) if reading is not None and len(data.texts[i].x) > 1]
    if read and not data.is_rounds:
        counts = {setting: np.zeros((len(row_of), WIDTH)) for setting in grid}
        for i, reading in read:
            traced = labelled_trace(data, i, reading)
            for setting, of_prompts in counts.items():
                of_prompts[row_of[names[i]]] += replay_chain(traced, setting).row
        return names, ReplayedChains(counts)
    verified, accepted = (np.zeros((len(row_of), LENGTHS[-1])) for _ in range(2))
    for name, text in zip(names, data.texts, strict=True):
        depths = np.array(text.depths if data.is_rounds else [], dtype=int)
        accept = np.array(text.accept)
        if data.is_rounds:
            in_range = depths < LENGTHS[-1]
            np.add.at(verified[row_of[name]], depths[in_range], 1.0)
            np.add.at(accepted[row_of[name]], depths[in_range], accept[in_range])
        else:
            verified[row_of[name]] += len(accept)
            accepted[row_of[name]] += accept.sum()
    return names, LoggedChains(verified, accepted)


def _with_changes(
    report: DataReport, against: DataReport, second: Labelled, engine_costs: EngineCosts | None
) -> EngineSettings | None:
    """Return the settings of the first dataset with sentences about their change to the second dataset."""
    first, other = report.engine_settings, against.engine_settings
    if first is None or other is None or engine_costs is None:
        return first
    _, chains = chains_of(second)
    changes = changes_of(first, other, chains, engine_costs.single, (report.data, against.data))
    return replace(first, changes=changes)


def tokens_per_draft_round(data: Labelled) -> float:
    """Return the mean number of tokens that a round with a draft adds to a text.

    These are the accepted tokens, which are recognised because they equal the text, and one token of the target.
    """
    rounds = accepted = 0
    for text in data.texts:
        rounds += text.depths.count(0)
        drafted = zip(text.places, text.tokens, strict=True)
        accepted += sum(position < len(text.x) and text.x[position] == token for position, token in drafted)
    return accepted / rounds + 1


def labelled_trace(data: Labelled, index: int, reading: Reading) -> Trace:
    """Return text ``index`` of acceptance data as a trace, in which labels decide on acceptance."""
    text = data.texts[index]
    count = len(text.x)
    uniforms = drawn_for(0, "kept", text.prompt_id, count=count).tolist()
    return Trace(
        text=text.x, budget=count, kept=[u < p for u, p in zip(uniforms, text.accept, strict=True)],
        after=[*range(1, count), END], tokens=text.tokens, q=[s[0] for s in reading.signals], signals=reading.signals,
        ngram_matches=reading.matches, accept=text.accept, states=reading.before,
    )  # fmt: skip


def with_replay(report: DataReport, data: Labelled, cost: CostModel | None) -> DataReport:
    """Return the report with every length and controller replayed on acceptance data; unchanged for rounds.

    With costs, families of rules have the value that is tuned on one half of the texts and evaluated on the other.
    """
    read = [(i, reading) for i, reading in enumerate(data.readings) if reading is not None and len(data.texts[i].x) > 1]
    if data.is_rounds or not read:
        return report
    traces = [labelled_trace(data, i, reading) for i, reading in read]
    rules = [*map(rule_of, FAMILIES)]
    if cost is not None:
        rules.append(informed_rule(cost))
        for name, predictor in data.predictors.items():
            values = [predicted(predictor, data.texts[i], reading) for i, reading in read]
            lengths = [RateOptimal(PrecomputedPredictor(predictor, probabilities), cost) for probabilities in values]
            rules.append(Rule(name, (0.0,), {}, lambda _, lengths=lengths: lambda index, x: lengths[index]))  # type: ignore[misc]
    counts: dict[Setting, list[Counts]] = {}
    for rule in rules:
        by_parameter = zip(rule.parameters, replay_rule(traces, rule, frozenset()), strict=True)
        counts |= {(rule.name, x): of_traces for x, of_traces in by_parameter}
    if cost is None:
        words = {word_of(*setting): of_traces for setting, of_traces in counts.items()}
        return replace(report, decoders={word: _result(word, of_traces, None) for word, of_traces in words.items()})
    decoders = {NONE: DecoderResult(title=NONE, replay=Interval(1.0, 1.0, 1.0), tokens_per_forward=1.0)}
    for name, family in FAMILIES.items():
        best = tuned(family.values, name, counts, cost)
        evaluated = crossed(name, best, counts)
        assert evaluated is not None
        decoders[name] = _result(f"{name} {best.best:g}", evaluated, cost)
    decoders |= {name: replace(_result(name, counts[name, 0.0], cost), trained=True) for name in data.predictors}
    speeds = {name: row.replay.value for name, row in decoders.items() if row.replay is not None}
    bound = speed_of(counts[INFORMED, 0.0], cost).value
    return replace(
        report,
        decoders=decoders,
        best=max(speeds, key=lambda name: speeds[name]),
        lengths=by_length(counts, FIXED, cost),
        informed=bound if bound >= max(speeds.values()) else None,
    )


def _result(title: str, counts: Sequence[Counts], cost: CostModel | None) -> DecoderResult:
    per_forward, accepted = rates(counts)
    speed = None if cost is None else speed_of(counts, cost)
    return DecoderResult(title=title, replay=speed, tokens_per_forward=per_forward, accepted=accepted)


def _differing(first: Labelled, second: Labelled) -> list[str]:
    """Return the settings in which two datasets differ, in words, as possible reasons of a drift."""
    differences = []
    for name in ("temperature", "top_k", "top_p"):
        values, second_values = (
            {str(source.sampling[name]) for source in data.sources if name in source.sampling}
            for data in (first, second)
        )
        if values and second_values and values != second_values:
            differences.append(
                f"{name.replace('_', '-')} {', '.join(sorted(values))} against {', '.join(sorted(second_values))}"
            )
    rules = [data.sources[0].verifier for data in (first, second)]
    if all(rules) and rules[0] != rules[1]:
        differences.append(f"verification rule {rules[0]} against {rules[1]}")
    if first.is_rounds != second.is_rounds:
        differences.append(
            "one has a drafted token at every position, the other only tokens that a controller drafted; compare them "
            "by confidence"
        )
    return differences


def sentences(report: DataReport) -> list[str]:
    """Return the conclusions about a dataset, the most important one first."""
    overall = report.acceptance[ALL][ALL]
    temperatures = sorted({t for sampling in report.sampling if (t := sampling.get("temperature")) is not None})
    at = f" at temperature {', '.join(f'{t:g}' for t in temperatures)}" if temperatures else ""
    lines = [
        f"In {report.data} ({counted(report.texts, 'text')}{at}), the target accepts {show(overall.interval)} of the "
        "drafted tokens."
    ]
    depths = [*report.acceptance.get("depth", {}).items()]
    if depths:
        (start, at_start), (end, at_end) = depths[0], depths[-1]
        lines.append(
            f"Acceptance is {at_start.acceptance:.2f} at token {start} of a round and {at_end.acceptance:.2f} at token "
            f"{end}."
        )
    measured_domains = [item for item in report.acceptance.get("domain", {}).items() if item[1].low is not None]
    domains = sorted(measured_domains, key=lambda item: -item[1].acceptance)
    if len(domains) > 1:
        (best, most), (worst, least) = domains[0], domains[-1]
        lines.append(
            f"Acceptance is highest in the domain {best} ({most.acceptance:.2f}) and lowest in the domain {worst} "
            f"({least.acceptance:.2f})."
        )
    if report.tokens_per_draft_round is not None:
        lines.append(f"A round with a draft adds {report.tokens_per_draft_round:.2f} tokens on average.")
    if report.best is not None:
        lines.append(_replay_sentence(report, report.best))
    confidence = report.predictors.get(DRAFT_CONFIDENCE, {}).get(ALL)
    if confidence is not None and confidence.auroc is not None:
        lines.append(
            f"{DRAFT_CONFIDENCE.capitalize()} has an AUROC of {confidence.auroc:.3f} and an expected calibration error "
            f"of {confidence.ece:.3f}."
        )
    return [*lines, *judgements(report.predictors)]


def _replay_sentence(report: DataReport, best: str) -> str:
    """Return a sentence with the speed-up of the decoder ``best`` by replay, and the verdict that follows from it."""
    row = report.decoders[best]
    if best == NONE or row.replay is None:
        return (
            "Drafting does not pay here: no length would decode faster than no drafts, replayed on the labels at "
            f"{report.cost_description}."
        )
    speed = show(row.replay, prompts=report.prompts)
    line = (
        f"{row.title} would decode {speed} × as fast as no drafts, replayed on the labels at {report.cost_description}."
    )
    match answer_of(row.replay, report.prompts):
        case Answer.PAYS:
            return line
        case Answer.DOES_NOT_PAY:
            return f"Drafting does not pay here. {line}"
        case Answer.UNDECIDED:
            return f"These labels cannot decide whether drafting pays. {line}"


def drift_sentences(report: DataReport, against: DataReport) -> list[str]:
    """Return the conclusions about the drift from the dataset of ``report`` to that of ``against``."""
    names = f"from {report.data} to {against.data}"
    overall = report.drift[ALL][ALL]
    significant = [
        (grouping, group, drift)
        for grouping, groups in report.drift.items()
        for group, drift in groups.items()
        if drift.is_significant
    ]
    change = f"{overall.acceptance:.2f} → {overall.other:.2f}, {difference(overall)}"
    if not significant:
        lines = [
            f"Acceptance did not drift {names}: {change}.",
            "No group of tokens differs by more than chance explains.",
        ]
    else:
        direction = "rose" if overall.difference > 0 else "fell"
        start = (
            f"Acceptance {direction} {names}" if overall.is_significant
            else f"Acceptance of all tokens did not drift {names}, but that of some groups did"
        )  # fmt: skip
        drifted = [entry for entry in significant if entry[0] != ALL]
        lines = [f"{start}: {change}."]
        if drifted:
            grouping, group, drift = max(drifted, key=lambda entry: abs(entry[2].difference))
            lines.append(
                f"The largest change is that of {group_name(grouping, group)}: {drift.acceptance:.2f} → "
                f"{drift.other:.2f}, {difference(drift)}."
            )
            lines.append(f"{len(drifted)} of {sum(map(len, report.drift.values())) - 1} groups drifted.")
    return lines + [f"The datasets differ in their settings: {words}." for words in report.differs]
