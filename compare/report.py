"""The report of a comparison or of data: from what ``report.json`` holds to a document.

What was not measured, or means nothing, is left out: an interval of fewer than ``ENOUGH`` prompts, a chart without two
points, a group of few tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.errors import counted
from ..common.files import replacing
from .document import Bar, Bars, Chart, Document, Mosaic, Point, Section, page
from .drafted import ALL, FEW, start_of
from .interval import ENOUGH, show

Report = Mapping[str, Any]

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
    """The document of a report, as ``report.json`` has it."""
    makers = (_drift, _speed, _by_length, _by_place, _reliability, _acceptance, _calibration, _mosaic)
    sections = [made for make in makers if not (made := make(report)).empty]
    return Document(_title(report), report["sentences"], report.get("commands", {}), sections, _remarks(report))


def write(folder: Path, report: Report, parts: Sequence[Report]) -> list[Path]:
    """Write ``report.html`` and ``report.md``, with a document of each of ``parts``, and ``report.json``, last."""
    documents = [document_of(part) for part in parts]
    texts = {
        "report.html": page(documents),
        "report.md": "\n".join(document.markdown() for document in documents),
        "report.json": json.dumps(report, indent=1, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        with replacing(folder / name) as file:
            file.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _title(report: Report) -> str:
    draft = report.get("draft")
    if "data" in report:
        return f"Acceptance: {draft} for {report['target']}"
    pair = report["target"] + (f" with {draft}" if draft else "")
    return f"Does drafting pay? {pair}, temperature {report['task']['sampling']['temperature']:g}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _bounds(row: Mapping[str, float], prompts: int = ENOUGH) -> tuple[float | None, float | None]:
    return (row.get("low"), row.get("high")) if prompts >= ENOUGH else (None, None)


def group_name(way: str, group: str) -> str:
    """A group of tokens in words."""
    return group if way == ALL else f"{PLACES[way]} {group}"


# speed


def _speed(report: Report) -> Section:
    decoders, prompts = report.get("decoders", {}), report.get("prompts", 0)
    clocked = any(row.get("clock") for row in decoders.values())
    bars, rows = [], []
    for name, row in decoders.items():
        replay, best = row["replay"], name == report["best"]
        speed = row.get("clock") or replay
        rows.append(
            {
                "decoder": f"[bold]{row['title']}[/bold]" if best else row["title"],
                "tokens/s": _number(row.get("tokens_per_second"), ".0f"),
                "speed-up": show(row.get("clock"), prompts=prompts),
                "replay": show(replay, prompts=0 if clocked else prompts),
                "CPU": _number(row.get("processor"), ".2f"),
                "J/token": _number(row.get("joules"), ".2f"),
                "per forward": _number(row["tokens_per_forward"], ".2f"),
                "accepted": _number(row["accepted"], ".0%"),
            }
        )
        if name != "none" and speed is not None:
            other = replay["value"] if row.get("clock") and replay else None
            bounds = _bounds(speed, prompts)
            bars.append(Bar(row["title"], show(speed, prompts=prompts), speed["value"], *bounds, other, best))
    if report.get("informed") is not None:
        bars.append(Bar("every acceptance probability known", f"{report['informed']:.2f}", other=report["informed"]))
    columns = {
        "speed-up": "over decoding without drafts, every prompt with every decoder in turn, with 95 % intervals over "
        "prompts",
        "replay": f"that over no drafts, from recorded texts at {report.get('priced')}, without the clock's noise",
        "CPU": "by processor time, which other work on the machine lengthens less",
        "per forward": "tokens that one forward of the target yields",
        "accepted": "the share of the drafted tokens that the target kept",
    }
    used = {column for row in rows for column, cell in row.items() if cell}
    note = "; ".join(f"{column}: {words}" for column, words in columns.items() if column in used) + "."
    if 0 < prompts < ENOUGH:
        note += f" {counted(prompts, 'prompt')}: too few for intervals."
    shown = [{column: cell for column, cell in row.items() if column in used} for row in rows]
    pictures = Bars(bars, key=clocked) if bars else None
    return Section("How fast", note + _disagreement(report), shown, bars=pictures)


def _disagreement(report: Report) -> str:
    apart = [
        row["title"]
        for row in report.get("decoders", {}).values()
        if row.get("clock") and row["replay"] and report["prompts"] >= ENOUGH
        and (row["clock"]["low"] > row["replay"]["high"] or row["clock"]["high"] < row["replay"]["low"])
    ]  # fmt: skip
    if not apart:
        return ""
    return (
        f" Clock and replay differ by more than their intervals for {', '.join(apart)}: the replay leaves out the "
        "reading of prompts, and takes the costs of short texts; the clock has the machine's other work in it, which "
        "the speed-up by processor time has less."
    )


def _by_length(report: Report) -> Section:
    prompts = report.get("prompts", 0)
    points = [Point(row["length"], row["value"], *_bounds(row, prompts)) for row in report.get("lengths", [])]
    ticks = [point.x for point in points]
    chart = Chart("tokens in each draft", "speed over no drafts", {"fixed length": points}, ticks, shares=False)
    note = f"By replay at {report.get('priced')}. Longer drafts give more tokens in a round, and waste more."
    return Section("Speed by draft length", note, chart=chart, narrow=True)


# acceptance


def _along(way: str, lines: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Chart:
    """Acceptance by token of a round or of the text; the last point is of all later ones too."""
    drawn = {
        name: [Point(start_of(p), row["acceptance"], *_bounds(row)) for p, row in rows.items() if row["tokens"] >= FEW]
        for name, rows in lines.items()
    }
    places = sorted({point.x for points in drawn.values() for point in points})
    return Chart(PLACES[way], "share accepted", drawn, places, log=way == "position")


def _by_place(report: Report) -> Section:
    lines = {}
    for name, rows in report.get("lines", {}).items():
        bare = {place: {key: row[key] for key in ("acceptance", "tokens")} for place, row in rows.items()}
        lines["all tokens" if name == ALL else name] = rows if name == ALL else bare  # one band, so that it is seen
    note = (
        "How often the target accepts a drafted token if it accepted all before it; a point is of its token and those "
        "up to the next point. Places that few tokens were drafted at are left out."
    )
    chart = _along(report["along"], lines) if lines else None
    return Section("Acceptance by position", note, chart=chart, narrow=True)


def _acceptance(report: Report) -> Section:
    rows = [
        {"tokens of": group_name(way, group), "acceptance": show(row, "acceptance"), "drafted": f"{row['tokens']}",
         "prompts": f"{row['prompts']}"}
        for way, of_way in report.get("acceptance", {}).items() for group, row in of_way.items()
    ]  # fmt: skip
    note = "The mean probability that the target accepts a drafted token, with its 95 % interval over prompts."
    return Section("Acceptance", note, rows)


def _sides(report: Report) -> dict[str, Report]:
    """The report, and that of the data that it is compared with, by what is added to the names of theirs."""
    against = report.get("against")
    return {"": report} if against is None else {f" in {side['data']}": side for side in (report, against)}


def _reliability(report: Report) -> Section:
    lines = {
        name + added: [
            Point(r["predicted"], r["observed"]) for r in found[ALL]["reliability"] if r["count"] >= FEW_IN_BIN
        ]
        for added, side in _sides(report).items()
        for name, found in side.get("predictors", {}).items()
    }
    chart = Chart("predicted acceptance", "true acceptance", lines, (0, 0.25, 0.5, 0.75, 1), diagonal=True)
    note = "Tokens grouped by predicted acceptance. On the dashed line predictions are right on average."
    return Section("Can predictions be relied on?", note, chart=chart, narrow=True)


def _calibration(report: Report) -> Section:
    columns = {"Brier": "brier", "of a constant": "brier_constant", "ECE": "ece", "AUROC": "auroc"}
    rows = [
        {"predictor": name + added if group == ALL else "",
         "tokens of": group_name(ALL if group == ALL else side["along"], group), "drafted": f"{row['tokens']}",
         **{column: _number(row[key], ".3f") for column, key in columns.items()}}
        for added, side in _sides(report).items()
        for name, groups in side.get("predictors", {}).items() for group, row in groups.items()
    ]  # fmt: skip
    note = (
        "Brier score: mean squared distance of predicted from true acceptance, 0 at best; beside it that of the best "
        "constant. ECE: mean distance of groups by prediction from what happens in them. AUROC: the probability that "
        "an accepted token is ranked above a rejected one, 0.5 by chance."
    )
    return Section("Predictors of acceptance", note, rows)


def difference(row: Mapping[str, float]) -> str:
    """How acceptance changed, with its interval."""
    return f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"


def _drift(report: Report) -> Section:
    bars, rows, sides = [], [], _sides(report).values()
    for way, of_way in report.get("drift", {}).items():
        for group, row in of_way.items():
            name, changed = group_name(way, group), difference(row)
            bars.append(
                Bar(name, f"{row['difference']:+.3f}", row["difference"], row["low"], row["high"], best=row["found"])
            )
            rows.append({
                "tokens of": f"[bold]{name}[/bold]" if row["found"] else name,
                "acceptance": f"{row['acceptance']:.3f}", "against": f"{row['other']:.3f}",
                "difference": changed, "p": f"{row['p']:.3f}",
            })  # fmt: skip
    ways = [way for way in ("depth", "position") if all(way in side.get("acceptance", {}) for side in sides)]
    lines = {side["data"]: side["acceptance"][way] for way in ways[:1] for side in sides} if rows else {}
    note = (
        "The difference has a 95 % interval. p: the probability of a difference this large anywhere in the table if "
        "nothing had drifted, from reassignments of the prompts to the two datasets; bold: at most 0.05."
    )
    chart = _along(ways[0], lines) if lines else None
    return Section("Drift", note, rows, chart, Bars(bars, 0.0) if lines else None)


# texts


def _mosaic(report: Report) -> Section:
    found = report.get("mosaic", {"prompt": "", "texts": {}})
    texts = {
        report["decoders"][name]["title"]: [
            piece | {"text": piece["text"].replace("\n", "⏎")} if piece["by"] == "rejected" else piece
            for piece in pieces
        ]
        for name, pieces in found["texts"].items()
    }
    used = {piece["by"] for pieces in texts.values() for piece in pieces}
    writers = {by: words for by, words in WRITERS.items() if by in used}
    prompt = found["prompt"] if len(found["prompt"]) <= LONGEST else found["prompt"][:LONGEST] + " …"
    note = "One prompt, decoded with the two fastest decoders."
    return Section("Who wrote each token", note, mosaic=Mosaic(prompt, texts, writers) if texts else None)


# how it was measured


def _remarks(report: Report) -> list[str]:
    tuned = "Rules without training are tuned on one half of the prompts and judged on the other, both halves in turn."
    if "data" in report:
        return [
            *(f"{side['data']}: drafted tokens {side['tokens']}, texts {side['texts']}, prompts {side['prompts']}."
              for side in _sides(report).values()),
            *(["Replayed on the labels: whether a token is kept is drawn with its acceptance, and after a rejected one "
               f"the draft goes on as along the text. {tuned}"] if report["decoders"] else []),
            *(note for side in _sides(report).values() for note in side["notes"]),
        ]  # fmt: skip
    task, machine = report["task"], report["machine"]
    sampling, passes = task["sampling"], f", {report['passes']} passes" if report["passes"] > 1 else ""
    found = [
        f"{counted(report['prompts'], 'prompt')}, up to {task['max_new_tokens']} tokens each, temperature "
        f"{sampling['temperature']:g}, top-k {sampling['top_k']}, top-p {sampling['top_p']:g}{passes}.",
        tuned,
        f"{machine['processor']}, {counted(machine['threads'], 'thread')}; "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        + ".",
    ]
    if report.get("ratio") is not None:
        found.append(
            f"By {report['priced']}, one more drafted token costs {report['ratio']:.2f} of a round without drafts."
        )
    if report.get("informed") is not None:
        found.append(
            "Every acceptance probability known: drafts as long as pay if the target's acceptance probability of each "
            "token were known, in the replay."
        )
    return found
