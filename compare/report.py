"""The document of a report: sentences, tables and pictures as a page and as Markdown.

Figures that were not measured or are noise are left out: an interval of fewer than ``ENOUGH`` prompts, a chart without
two points, a group of few tokens.
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
from .interval import ENOUGH, Interval, show
from .results import ComparisonReport, DataReport, GroupAcceptance, LengthSpeed, Piece, Report

FEW_IN_BIN = 10  # tokens of a row of the reliability table, below which it is noise
LONGEST = 400  # characters of a prompt that are shown
PLACES = {
    "depth": "token of a round", "position": "token of the text", "domain": "domain", "temperature": "temperature",
    "confidence": "confidence",
}  # fmt: skip
WRITERS = {
    "draft": "accepted token of the draft model",
    "copy": "accepted token copied from the text",
    "target": "the target's own token",
    "rejected": "rejected draft",
}


def document_of(report: Report) -> Document:
    """The document of a report."""
    sections = [
        _drift(report), _speed(report), _by_length(report), _by_place(report), _reliability(report),
        _acceptance(report), _calibration(report), _mosaic(report),
    ]  # fmt: skip
    shown = [section for section in sections if not section.empty]
    return Document(_title(report), report.sentences, report.commands, shown, _remarks(report))


def write(folder: Path, record: Record, reports: Sequence[Report]) -> list[Path]:
    """Write ``report.html`` and ``report.md``, with a document of each report, and last ``record`` as ``report.json``.

    Returns:
        The paths of the three files.
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
    if isinstance(report, DataReport):
        return f"Acceptance: {report.draft} for {report.target}"
    pair = report.target + (f" with {report.draft}" if report.draft else "")
    temperature = f", temperature {report.task.sampling.temperature:g}" if isinstance(report, ComparisonReport) else ""
    return f"Does drafting pay? {pair}{temperature}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _bounds(row: Interval | LengthSpeed | GroupAcceptance, prompts: int = ENOUGH) -> tuple[float | None, float | None]:
    return (row.low, row.high) if prompts >= ENOUGH else (None, None)


def group_name(way: str, group: str) -> str:
    """A group of tokens in words."""
    return group if way == ALL else f"{PLACES[way]} {group}"


# speed


def _speed(report: Report) -> Section:
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
            shown = show(row.speed, prompts=prompts)
            bars.append(Bar(row.title, shown, row.speed.value, *_bounds(row.speed, prompts), other, is_best))
    if report.informed is not None:
        bars.append(Bar("every acceptance probability known", f"{report.informed:.2f}", other=report.informed))
    columns = {
        "speed-up": "over decoding without drafts, every prompt with every decoder in turn, with 95 % intervals over "
        "prompts",
        "replay": f"that over no drafts, from recorded texts at {report.priced}, without the clock's noise",
        "CPU": "by processor time, which other work on the machine lengthens less",
        "tokens/forward": "generated tokens per target forward, the one that reads the prompt included",
        "accepted": "the share of the drafted tokens that the target kept",
    }
    used = {column for row in rows for column, cell in row.items() if cell}
    note = "; ".join(f"{column}: {words}" for column, words in columns.items() if column in used) + "."
    if 0 < prompts < ENOUGH:
        note += f" {counted(prompts, 'prompt')}: too few for intervals."
    note += _without_figures(report)
    cells = [{column: cell for column, cell in row.items() if column in used} for row in rows]
    pictures = Bars(bars, key=clocked) if bars else None
    return Section("How fast", note + _disagreement(report), cells, bars=pictures)


def _without_figures(report: Report) -> str:
    """Why decoders have no figures: without the clock only chains of the draft model have some."""
    names = [row.title for row in report.decoders.values() if row.clock is None and row.replay is None]
    if not names:
        return ""
    return (
        f" No figures of {listed(names)}: only chains of the draft model can be replayed, no copies, trees, routers, "
        "user's classes or other engines; leave --no-clock out to decode with them."
    )


def _disagreement(report: Report) -> str:
    apart = [
        row.title
        for row in report.decoders.values()
        if row.clock is not None and row.replay is not None and report.prompts >= ENOUGH
        and (row.clock.low > row.replay.high or row.clock.high < row.replay.low)
    ]  # fmt: skip
    if not apart:
        return ""
    return (
        f" Clock and replay differ by more than their intervals for {', '.join(apart)}: the replay leaves out the "
        "reading of prompts, and takes the costs of short texts; the clock has the machine's other work in it, which "
        "the speed-up by processor time has less."
    )


def _by_length(report: Report) -> Section:
    points = [Point(row.length, row.value, *_bounds(row, report.prompts)) for row in report.lengths]
    ticks = [point.x for point in points]
    chart = Chart("tokens in each draft", "speed over no drafts", {"fixed length": points}, ticks, shares=False)
    note = f"By replay at {report.priced}. Longer drafts give more tokens in a round, and waste more."
    return Section("Speed by draft length", note, chart=chart, narrow=True)


# acceptance


def _along(way: str, lines: Mapping[str, Mapping[str, GroupAcceptance]], banded: Sequence[str]) -> Chart:
    """Acceptance by token of a round or of the text; the last point is of all later tokens too.

    Args:
        banded: the lines with intervals.
    """
    points = {
        name: [
            Point(start_of(place), row.acceptance, *(_bounds(row) if name in banded else ()))
            for place, row in rows.items()
            if row.tokens >= FEW
        ]
        for name, rows in lines.items()
    }
    places = sorted({point.x for line in points.values() for point in line})
    return Chart(PLACES[way], "share accepted", points, places, log=way == "position")


def _by_place(report: Report) -> Section:
    lines = {"all tokens" if name == ALL else name: rows for name, rows in report.lines.items()}
    note = (
        "How often the target accepts a drafted token if it accepted all before it; a point is of its token and those "
        "up to the next point. Places that few tokens were drafted at are left out."
    )
    chart = None if report.along is None or not lines else _along(report.along, lines, ["all tokens"])
    return Section("Acceptance by position", note, chart=chart, narrow=True)


def _acceptance(report: Report) -> Section:
    rows = [
        {"tokens of": group_name(way, group), "acceptance": show(row.interval), "drafted": f"{row.tokens}",
         "prompts": f"{row.prompts}"}
        for way, of_way in report.acceptance.items() for group, row in of_way.items()
    ]  # fmt: skip
    note = "The mean probability that the target accepts a drafted token, with its 95 % interval over prompts."
    return Section("Acceptance", note, rows)


def _sides(report: Report) -> dict[str, Report]:
    """The report, and that of the dataset it is compared with, by what is added to the names of their predictors."""
    if not isinstance(report, DataReport) or report.against is None:
        return {"": report}
    return {f" in {side.data}": side for side in (report, report.against)}


def _reliability(report: Report) -> Section:
    lines = {
        name + added: [Point(row.predicted, row.observed) for row in groups[ALL].reliability if row.count >= FEW_IN_BIN]
        for added, side in _sides(report).items()
        for name, groups in side.predictors.items()
    }
    chart = Chart("predicted acceptance", "true acceptance", lines, (0, 0.25, 0.5, 0.75, 1), diagonal=True)
    note = "Tokens grouped by predicted acceptance. On the dashed line predictions are right on average."
    return Section("Can predictions be relied on?", note, chart=chart, narrow=True)


def _calibration(report: Report) -> Section:
    rows = [
        {"predictor": name + added if group == ALL else "",
         "tokens of": group_name(ALL if group == ALL else str(side.along), group), "drafted": f"{row.tokens}",
         "Brier": _number(row.brier, ".3f"), "of a constant": _number(row.brier_constant, ".3f"),
         "ECE": _number(row.ece, ".3f"), "AUROC": _number(row.auroc, ".3f")}
        for added, side in _sides(report).items()
        for name, groups in side.predictors.items() for group, row in groups.items()
    ]  # fmt: skip
    note = (
        "Brier score: mean squared distance of predicted from true acceptance, 0 at best; beside it that of the best "
        "constant. ECE: mean distance of groups by prediction from what happens in them. AUROC: the probability that "
        "an accepted token is ranked above a rejected one, 0.5 by chance."
    )
    return Section("Predictors of acceptance", note, rows)


def difference(drift: Drift) -> str:
    """How acceptance changed, with its interval."""
    return f"{drift.difference:+.3f} ({drift.low:+.3f} to {drift.high:+.3f})"


def _drift(report: Report) -> Section:
    if not isinstance(report, DataReport) or report.against is None:
        return Section("Drift", "")
    bars, rows, sides = [], [], (report, report.against)
    for way, of_way in report.drift.items():
        for group, row in of_way.items():
            name, significant = group_name(way, group), row.is_significant
            bars.append(Bar(name, f"{row.difference:+.3f}", row.difference, row.low, row.high, best=significant))
            rows.append({
                "tokens of": f"[bold]{name}[/bold]" if significant else name,
                "acceptance": f"{row.acceptance:.3f}", "against": f"{row.other:.3f}",
                "difference": difference(row), "p": f"{row.p:.3f}",
            })  # fmt: skip
    ways = [way for way in ("depth", "position") if all(way in side.acceptance for side in sides)]
    lines = {side.data: side.acceptance[way] for way in ways[:1] for side in sides} if rows else {}
    note = (
        "The difference has a 95 % interval. p: the probability of a difference this large anywhere in the table if "
        "nothing had drifted, from reassignments of the prompts to the two datasets; bold: at most 0.05."
    )
    chart = _along(ways[0], lines, [*lines]) if lines else None
    return Section("Drift", note, rows, chart, Bars(bars, 0.0) if lines else None)


# texts


def _mosaic(report: Report) -> Section:
    title, note = "Who wrote each token", "One prompt, decoded with the two fastest decoders."
    if not isinstance(report, ComparisonReport) or report.mosaic is None:
        return Section(title, note)
    texts = {
        report.decoders[name].title: [
            Piece(piece.by, piece.text.replace("\n", "⏎")) if piece.by == "rejected" else piece for piece in pieces
        ]
        for name, pieces in report.mosaic.texts.items()
    }
    used = {piece.by for pieces in texts.values() for piece in pieces}
    writers = {by: words for by, words in WRITERS.items() if by in used}
    prompt = report.mosaic.prompt
    shown = prompt if len(prompt) <= LONGEST else prompt[:LONGEST] + " …"
    return Section(title, note, mosaic=Mosaic(shown, texts, writers))


# how it was measured

TUNING = "Rules without training are tuned on one half of the prompts and judged on the other, both halves in turn."


RULE_WORDS = "Unless a decoder has another one, replay, clock and the labels of predictors are of the verification rule"


def _remarks(report: Report) -> list[str]:
    if isinstance(report, DataReport):
        return _data_remarks(report)
    return _comparison_remarks(report) if isinstance(report, ComparisonReport) else []


def _data_remarks(report: DataReport) -> list[str]:
    sides = [report] if report.against is None else [report, report.against]
    replay = [] if not report.decoders else [
        "Replayed on the labels: whether a token is kept is drawn with its acceptance, and after a rejected one the "
        f"draft goes on as along the text. {TUNING}"
    ]  # fmt: skip
    rules = [f"{side.data}: acceptance by the verification rule {side.verifier}." for side in sides if side.verifier]
    return [
        *(f"{side.data}: drafted tokens {side.tokens}, texts {side.texts}, prompts {side.prompts}." for side in sides),
        *rules,
        *replay,
        *(note for side in sides for note in side.notes),
    ]


def _comparison_remarks(report: ComparisonReport) -> list[str]:
    sampling, passes = report.task.sampling, f", {report.passes} passes" if report.passes > 1 else ""
    remarks = [
        f"{counted(report.prompts, 'prompt')}, up to {report.task.max_new_tokens} tokens each, temperature "
        f"{sampling.temperature:g}, top-k {sampling.top_k}, top-p {sampling.top_p:g}{passes}.",
        *([f"{RULE_WORDS} {report.verifier}."] if report.verifier else []),
        TUNING,
        f"{report.machine.processor}, {counted(report.machine.threads, 'thread')}; "
        + ", ".join(f"{name} {version}" for name, version in report.versions.items())
        + ".",
    ]
    if report.ratio is not None:
        remarks.append(
            f"By {report.priced}, one more drafted token costs {report.ratio:.2f} of a round without drafts."
        )
    if report.informed is not None:
        remarks.append(
            "Every acceptance probability known: drafts as long as pay if the target's acceptance probability of each "
            "token were known, in the replay."
        )
    return remarks
