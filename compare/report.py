"""Makes the document of a report: conclusions, tables and figures, as a page and as Markdown.

The document leaves out values that were not measured or that are noise: intervals of fewer than ``ENOUGH`` prompts,
lines of a single point, and groups of few tokens. Conclusions come first. Tables with a row for each position are
folded on the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..common.errors import counted, listed
from ..common.files import replacing
from ..common.record import Record
from .decoders import NONE
from .document import Bar, Bars, Chart, Document, Mosaic, Point, Section, page
from .drafted import ALL, FEW, start_of
from .drift import Drift
from .engine_settings import TITLE, cost_rows, group_rows, option_lines, remarks_of, rows_of
from .interval import ENOUGH, Interval, show
from .results import ComparisonReport, DataReport, GroupAcceptance, LengthSpeed, Piece, PossibleGain, Report
from .table import Row

FEW_IN_BIN = 10  # tokens of a row of the reliability table, below which it is noise
LONGEST = 400  # characters of a prompt that are shown
AXES = {"depth": "token of a round", "position": "token of the text"}  # labels of groupings by a position
GROUPS = {  # names of a group by grouping
    "depth": "token {} of a round", "position": "token {} of the text", "domain": "domain {}",
    "temperature": "temperature {}", "confidence": "confidence {}",
}  # fmt: skip
WRITERS = {
    "draft": "accepted token of the draft model",
    "copy": "accepted token that was copied from the text",
    "target": "token of the target",
    "rejected": "rejected token of a draft",
}


def document_of(report: Report) -> Document:
    """Return the document of a report."""
    sections = [
        _drift(report), _speed(report), _by_length(report), _possible_gains(report), _by_place(report),
        _reliability(report), _acceptance(report), _acceptance_by_position(report), _quality(report),
        _quality_by_position(report), _mosaic(report), *_engine_settings(report), _lengths_by_cost(report),
    ]  # fmt: skip
    filled_sections = [section for section in sections if not section.empty]
    return Document(_title(report), report.sentences, report.commands, filled_sections, _remarks(report))


def write(folder: Path, record: Record, reports: Sequence[Report]) -> list[Path]:
    """Write ``report.html`` and ``report.md``, with a document for each report, and ``record`` as ``report.json``.

    Returns:
        The paths of the three files. ``report.json`` is written last.
    """
    documents = [document_of(report) for report in reports]
    texts = {
        "report.html": page(documents),
        "report.md": "\n".join(document.markdown() for document in documents),
        "report.json": json.dumps(record.to_dict(), indent=1, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        with replacing(folder / name) as file:
            file.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _title(report: Report) -> str:
    """Return the title of a report's document."""
    if isinstance(report, DataReport):
        return f"Acceptance: {report.draft} for {report.target}"
    pair = report.target + (f" with {report.draft}" if report.draft else "")
    temperature = f", temperature {report.task.sampling.temperature:g}" if isinstance(report, ComparisonReport) else ""
    return f"Does drafting pay? {pair}{temperature}"


def _number(value: float | None, form: str) -> str:
    """Return ``value`` in the format ``form``; empty for None."""
    return "" if value is None else format(value, form)


def _bounds(row: Interval | LengthSpeed | GroupAcceptance, prompts: int = ENOUGH) -> tuple[float | None, float | None]:
    """Return the ends of an interval over ``prompts``; None for both if there are too few prompts."""
    return (row.low, row.high) if prompts >= ENOUGH else (None, None)


def group_name(grouping: str, group: str) -> str:
    """Return the name of a group of tokens, such as ``token 3 of a round``."""
    return "all tokens" if grouping == ALL else GROUPS[grouping].format(group)


# speed


def _speed(report: Report) -> Section:
    """Return the section that compares the speeds of the decoders."""
    prompts = report.prompts
    clocked = any(row.clock is not None for row in report.decoders.values())
    bars, rows = [], []
    for name, row in report.decoders.items():
        is_best = name == report.best
        rows.append(
            {
                "decoder": f"[bold]{row.title}[/bold]" if is_best else row.title,
                "tokens/s": _number(row.tokens_per_second, ".0f"),
                "speed-up": show(row.clock, prompts=prompts),
                "replay": show(row.replay, prompts=0 if clocked else prompts),
                "CPU": _number(row.processor, ".2f"),
                "J/token": _number(row.joules, ".2f"),
                "tokens/forward": _number(row.tokens_per_forward, ".2f"),
                "accepted": _number(row.accepted, ".0%"),
            }
        )
        if name != NONE and row.speed is not None:
            other = row.replay.value if row.clock is not None and row.replay is not None else None
            speed_text = show(row.speed, prompts=prompts)
            bars.append(Bar(row.title, speed_text, row.speed.value, *_bounds(row.speed, prompts), other, is_best))
    if report.informed is not None:
        bars.append(Bar("every acceptance probability known", f"{report.informed:.2f}", other=report.informed))
    explanations = {
        "tokens/s": "generated tokens per second of wall time",
        "speed-up": "by the clock (wall time), over decoding without drafts, with 95 % intervals over prompts",
        "replay": (
            f"speed-up by replay: computed from recorded texts at {report.cost_description}, without the clock's noise"
        ),
        "CPU": "speed-up by processor time, which other processes on the machine lengthen less than wall time",
        "J/token": "joules for each generated token",
        "tokens/forward": "generated tokens per target forward, the forward over the prompt included",
        "accepted": "share of the drafted tokens that the target accepted",
    }
    used_columns = {column for row in rows for column, cell in row.items() if cell}
    columns = "; ".join(f"{column}: {words}" for column, words in explanations.items() if column in used_columns)
    note = f"Columns: {columns}." if columns else ""
    if 0 < prompts < ENOUGH:
        note += f" {counted(prompts, 'prompt')}: too few for intervals."
    note = (note + _without_figures(report) + _disagreement(report)).strip()
    cells = [{column: cell for column, cell in row.items() if column in used_columns} for row in rows]
    pictures = Bars(bars, key=clocked) if bars else None
    reading = "A dot right of the dashed line is a decoder that is faster than decoding without drafts"
    reading += "; the bar behind the dot is its 95 % interval." if prompts >= ENOUGH else "."
    return Section("Speed", note, cells, bars=pictures, reading=reading)


def _without_figures(report: Report) -> str:
    """Return a sentence about decoders without a speed; empty if there are none.

    Without the clock, only decoders that draft chains of the draft model have a speed.
    """
    names = [row.title for row in report.decoders.values() if row.clock is None and row.replay is None]
    if not names:
        return ""
    return (
        f" {listed(names)}: no speed without the clock, because only chains of the draft model can be replayed. Leave "
        "--no-clock out to time decoders with copies, trees, routers, your own classes or other engines."
    )


def _disagreement(report: Report) -> str:
    """Return a sentence about decoders whose two speed-ups have disjoint intervals; empty if there are none."""
    names = [
        row.title
        for row in report.decoders.values()
        if row.clock is not None and row.replay is not None and report.prompts >= ENOUGH
        and (row.clock.low > row.replay.high or row.clock.high < row.replay.low)
    ]  # fmt: skip
    if not names:
        return ""
    return (
        f" Clock and replay differ by more than their intervals for {', '.join(names)}. The replay leaves out the "
        "reading of prompts and uses costs of short texts. The clock includes the time that other processes take."
    )


def _by_length(report: Report) -> Section:
    """Return the section with the speed-up of each fixed draft length."""
    points = [Point(row.length, row.value, *_bounds(row, report.prompts)) for row in report.lengths]
    ticks = [point.x for point in points]
    chart = Chart("tokens in each draft", "speed-up over no drafts", {"fixed length": points}, ticks, shares=False)
    note = (
        f"Computed by replay at {report.cost_description}. Longer drafts yield more tokens in a round, and waste more."
    )
    reading = "The best fixed draft length is where the line is highest; below the dashed line, drafts cost time."
    return Section("Speed by draft length", note, chart=chart, narrow=True, reading=reading)


def _share(gain: PossibleGain) -> str:
    """Return the share of the possible gain in percent with its interval; empty if it is not defined."""
    if gain.share is None:
        return ""
    return f"{gain.share:.0%}" if gain.low is None else f"{gain.share:.0%} ({gain.low:.0%} to {gain.high:.0%})"


def _possible_gains(report: Report) -> Section:
    """Return the section with the share of the possible gain that a trained decoder reaches, by domain."""
    rows = [
        {
            "prompts of": "all domains" if domain == ALL else domain,
            "prompts": f"{gain.prompts}",
            "best rule": f"{gain.rule} {gain.rule_speed:.2f}",
            "trained": f"{gain.trained} {gain.trained_speed:.2f}",
            "perfect predictor": f"{gain.informed:.2f}",
            "share": _share(gain),
        }
        for domain, gain in report.gains.items()
    ]  # fmt: skip
    note = (
        "Speed-ups by replay of the fastest rule without training, of the fastest trained decoder, and of a predictor "
        "that knows every acceptance probability. share: the part of the difference between rule and perfect predictor "
        "that the trained decoder reaches, with its 95 % interval over prompts. It is negative if the rule is faster."
    )
    return Section("Share of the possible gain", note, rows)


# acceptance


def _place_chart(grouping: str, lines: Mapping[str, Mapping[str, GroupAcceptance]], banded: Sequence[str]) -> Chart:
    """Return a chart of acceptance by token of a round or of the text.

    The last point stands for all later tokens, too.

    Args:
        grouping: ``depth`` or ``position``.
        lines: acceptance by line and position.
        banded: the lines that are drawn with intervals.
    """
    points = {
        name: [
            Point(start_of(position), row.acceptance, *(_bounds(row) if name in banded else ()))
            for position, row in rows.items()
            if row.tokens >= FEW
        ]
        for name, rows in lines.items()
    }
    places = sorted({point.x for line in points.values() for point in line})
    return Chart(AXES[grouping], "share accepted", points, places, log=grouping == "position")


def _by_place(report: Report) -> Section:
    """Return the section with the chart of acceptance by position."""
    lines = {"all tokens" if name == ALL else name: rows for name, rows in report.lines.items()}
    note = (
        "A drafted token counts if the target accepted all tokens of its round before it. Positions with few drafted "
        "tokens are left out."
    )
    reading = (
        "Each point is the share of drafted tokens that the target accepts, from its position up to the next point."
    )
    grouping = report.place_grouping
    chart = None if grouping is None or not lines else _place_chart(grouping, lines, ["all tokens"])
    return Section("Acceptance by position", note, chart=chart, narrow=True, reading=reading)


def _acceptance_rows(report: Report, *, positions: bool) -> list[Row]:
    """Return the rows of acceptance of groups by position, or of all other groups."""
    return [
        {"group": group_name(grouping, group), "acceptance": show(row.interval), "drafted": f"{row.tokens}",
         "prompts": f"{row.prompts}"}
        for grouping, groups in report.acceptance.items() if (grouping in AXES) == positions
        for group, row in groups.items()
    ]  # fmt: skip


ACCEPTANCE_NOTE = (
    "Acceptance is the mean probability that the target accepts a drafted token, with its 95 % interval over prompts."
)


def _acceptance(report: Report) -> Section:
    """Return the section with the acceptance of all tokens and of each domain, temperature and confidence."""
    return Section("Acceptance", ACCEPTANCE_NOTE, _acceptance_rows(report, positions=False))


def _acceptance_by_position(report: Report) -> Section:
    """Return the section with the table of acceptance by position."""
    rows = _acceptance_rows(report, positions=True)
    return Section("Acceptance at each position", ACCEPTANCE_NOTE, rows, folded=True)


def _sides(report: Report) -> dict[str, Report]:
    """Return the reports whose predictors are shown, by the words that follow the names of their predictors."""
    if not isinstance(report, DataReport) or report.against is None:
        return {"": report}
    return {f" in {side.data}": side for side in (report, report.against)}


def _reliability(report: Report) -> Section:
    """Return the section with the reliability diagram of the predictors."""
    lines = {
        name + suffix: [
            Point(row.predicted, row.observed) for row in groups[ALL].reliability if row.count >= FEW_IN_BIN
        ]
        for suffix, side in _sides(report).items()
        for name, groups in side.predictors.items()
    }
    chart = Chart("predicted acceptance", "true acceptance", lines, (0, 0.25, 0.5, 0.75, 1), diagonal=True)
    note = "Tokens are grouped by predicted acceptance."
    reading = "On the dashed line, predictions are right on average; below it they are too high, above it too low."
    return Section("Calibration of predictors", note, chart=chart, narrow=True, reading=reading)


def _quality_rows(report: Report, *, positions: bool) -> list[Row]:
    """Return the rows of the quality of predictors by position, or on all tokens."""
    return [
        {"predictor": name + suffix,
         **({"group": group_name(str(side.place_grouping), group)} if positions else {}), "drafted": f"{row.tokens}",
         "Brier": _number(row.brier, ".3f"), "constant": _number(row.brier_constant, ".3f"),
         "ECE": _number(row.ece, ".3f"), "AUROC": _number(row.auroc, ".3f")}
        for suffix, side in _sides(report).items()
        for name, groups in side.predictors.items()
        for group, row in groups.items() if (group != ALL) == positions
    ]  # fmt: skip


QUALITY_NOTE = (
    "Brier: Brier score, the mean squared distance of predicted from true acceptance; 0 is best. constant: the Brier "
    "score of predicting the mean acceptance everywhere. ECE: expected calibration error, the mean distance of "
    "predicted from true acceptance over groups of similar predictions; 0 is best. AUROC: the probability that an "
    "accepted token is ranked above a rejected one; 0.5 is chance, 1 is best."
)


def _quality(report: Report) -> Section:
    """Return the section with the quality of each predictor on all tokens."""
    return Section("Predictors of acceptance", QUALITY_NOTE, _quality_rows(report, positions=False))


def _quality_by_position(report: Report) -> Section:
    """Return the section with the quality of each predictor by position."""
    return Section("Predictors at each position", QUALITY_NOTE, _quality_rows(report, positions=True), folded=True)


def difference(drift: Drift) -> str:
    """Return the change of acceptance with its 95 % interval, such as ``-0.120 (-0.150 to -0.090)``."""
    return f"{drift.difference:+.3f} ({drift.low:+.3f} to {drift.high:+.3f})"


def _drift(report: Report) -> Section:
    """Return the section with the drift of acceptance between two datasets; empty without a second dataset."""
    if not isinstance(report, DataReport) or report.against is None:
        return Section("Drift", "")
    bars, rows, sides = [], [], (report, report.against)
    for grouping, groups in report.drift.items():
        for group, row in groups.items():
            name, significant = group_name(grouping, group), row.is_significant
            bars.append(Bar(name, f"{row.difference:+.3f}", row.difference, row.low, row.high, best=significant))
            rows.append({
                "group": f"[bold]{name}[/bold]" if significant else name,
                "acceptance": f"{row.acceptance:.3f}", "against": f"{row.other:.3f}",
                "difference": difference(row), "p": f"{row.p:.3f}",
            })  # fmt: skip
    groupings = [grouping for grouping in AXES if all(grouping in side.acceptance for side in sides)]
    lines = {side.data: side.acceptance[grouping] for grouping in groupings[:1] for side in sides} if rows else {}
    note = (
        f"acceptance: in {report.data}; against: in {report.against.data}. The difference has a 95 % interval. p: the "
        "probability of a difference this large in any row if nothing had drifted, from random reassignments of the "
        "prompts to the two datasets. Rows in bold drifted: their p is at most 0.05."
    )
    reading = "Right of the dashed line, acceptance is higher in the second dataset; groups in bold drifted."
    chart = _place_chart(groupings[0], lines, [*lines]) if lines else None
    bars_of_groups = Bars(bars, 0.0) if lines else None
    return Section("Drift", note, rows, chart, bars_of_groups, reading=reading, folded=bars_of_groups is not None)


# texts


def _mosaic(report: Report) -> Section:
    """Return the section with one text of each of the two fastest decoders, coloured by the source of each token."""
    title, note = "Source of each token", "One prompt, decoded with the two fastest decoders."
    if not isinstance(report, ComparisonReport) or report.mosaic is None:
        return Section(title, note)
    texts = {
        report.decoders[name].title: [
            Piece(piece.by, piece.text.replace("\n", "⏎")) if piece.by == "rejected" else piece for piece in pieces
        ]
        for name, pieces in report.mosaic.texts.items()
    }
    authors = {piece.by for pieces in texts.values() for piece in pieces}
    writers = {by: words for by, words in WRITERS.items() if by in authors}
    prompt = report.mosaic.prompt
    prompt_text = prompt if len(prompt) <= LONGEST else prompt[:LONGEST] + " …"
    reading = "Each colour is a source of tokens; the more of the text is drafted, the fewer forwards the target needs."
    return Section(title, note, mosaic=Mosaic(prompt_text, texts, writers), reading=reading)


# settings of other engines


def _engine_settings(report: Report) -> list[Section]:
    """Return the sections with the settings of other engines, and with the best draft length of each group."""
    settings = report.engine_settings
    if settings is None:
        return []
    options = option_lines(settings)
    rows = [row | {"setting": options.pop(row["engine"])} for row in rows_of(settings)]
    rows += [{"engine": name, "setting": line} for name, line in options.items()]
    note = (
        "tokens: the fastest number of drafted tokens, 0 without drafts. expected speed-up: with its 95 % interval "
        "over prompts. other lengths: expected speed-up with one token less and one token more. "
    ) + " ".join(remarks_of(settings))
    note_of_groups = "The fastest number of drafted tokens for the prompts of each group, with greedy drafts."
    return [Section(TITLE, note, rows), Section("Draft length by group", note_of_groups, group_rows(settings))]


def _lengths_by_cost(report: Report) -> Section:
    """Return the section with the best draft length by the cost of a draft step, for data without costs."""
    choices = report.lengths_by_cost if isinstance(report, DataReport) else {}
    note = (
        "draft step / verification: time of a draft step in units of a verification. tokens: the fastest number of "
        "drafted tokens, 0 without drafts. expected speed-up: of a single request, with its 95 % interval over "
        "prompts, if the verification of several tokens takes as long as that of one token."
    )
    return Section("Draft length by the cost of a draft step", note, cost_rows(choices))


# how it was measured

TUNING = (
    "Rules without training are tuned on one half of the prompts and evaluated on the other half, in both directions."
)


def _remarks(report: Report) -> list[str]:
    """Return sentences about the method of a report's measurements."""
    if isinstance(report, DataReport):
        return _data_remarks(report)
    return _comparison_remarks(report) if isinstance(report, ComparisonReport) else []


def _data_remarks(report: DataReport) -> list[str]:
    """Return sentences about the method of a report about a dataset."""
    sides = [report] if report.against is None else [report, report.against]
    replay = [] if not report.decoders else [
        "The replay uses the labels: a drafted token is kept with the probability of its acceptance. After a rejected "
        f"token, the draft continues as along the text. {TUNING}"
    ]  # fmt: skip
    rules = [f"{side.data}: acceptance by the verification rule {side.verifier}." for side in sides if side.verifier]
    return [
        *(f"{side.data}: drafted tokens {side.tokens}, texts {side.texts}, prompts {side.prompts}." for side in sides),
        *rules,
        *replay,
        *(note for side in sides for note in side.notes),
    ]


def _comparison_remarks(report: ComparisonReport) -> list[str]:
    """Return sentences about the method of a comparison."""
    sampling, passes = report.task.sampling, f", {report.passes} passes" if report.passes > 1 else ""
    rule = (
        f"Replay, clock and labels of acceptance use the verification rule {report.verifier}, unless a decoder names "
    )
    remarks = [
        f"{counted(report.prompts, 'prompt')}, up to {report.task.max_new_tokens} tokens each, temperature "
        f"{sampling.temperature:g}, top-k {sampling.top_k}, top-p {sampling.top_p:g}{passes}.",
        *([rule + "another rule."] if report.verifier else []),
        TUNING,
        f"{report.machine.processor}, {counted(report.machine.threads, 'thread')}; "
        + ", ".join(f"{name} {version}" for name, version in report.versions.items())
        + ".",
    ]
    if report.ratio is not None:
        remarks.append(
            f"At {report.cost_description}, one more drafted token costs {report.ratio:.2f} of a round without drafts."
        )
    if report.informed is not None:
        remarks.append(
            "Every acceptance probability known, by replay: a controller that knows the probability that the target "
            "accepts each token. Each of its drafts has the length that pays most by these probabilities."
        )
    return remarks
