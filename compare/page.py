"""The report of a comparison as a page: one file without scripts that asks no host for anything.

Its functions take what ``report.json`` holds. What was not measured, or means nothing, is left out: an interval of
fewer than ``ENOUGH`` prompts, a chart without two points, a predictor with few checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from .chart import Axis, Bar, Chart, Point, intervals
from .interval import ENOUGH

Report = Mapping[str, Any]

FEW = 10  # tokens of a row of the reliability table, below which it is noise
LONGEST = 400  # characters of a prompt that are shown
NAMES = {"none": "no drafts", "confidence": "the draft's own confidence", "all": "all prompts"}
WRITERS = {
    "draft": "accepted token of the draft model",
    "copy": "accepted token copied from the text",
    "target": "the target's own token",
    "rejected": "rejected draft",
}
STYLE = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # even what is inserted by error loads nothing


def page(report: Report) -> str:
    """The whole page."""
    title = escape(_title(report))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<style>body{margin:0}@media (prefers-color-scheme:dark){body{background:#14171c}}</style></head>"
        f"<body>{fragment(report)}</body></html>\n"
    )


def fragment(report: Report) -> str:
    """The report within another page, such as a notebook's."""
    parts = [f"<h1>{escape(_title(report))}</h1>", _answer(report), _speed(report)]
    charts = [section for make in (_by_length, _by_position, _reliability, _hardware) if (section := make(report))]
    if charts:
        parts.append(f'<div class="grid">{"".join(charts)}</div>')
    parts += [_calibration(report), _mosaic(report), _how(report)]
    return f'<div class="specpilot"><style>{STYLE}</style>{"".join(parts)}</div>'


def _title(report: Report) -> str:
    draft = report.get("draft")
    return f"Does drafting pay? {report['target']}" + (f" with {draft}" if draft else "")


def _answer(report: Report) -> str:
    first, *rest = report["sentences"]
    words = [f'<p class="lead">{escape(first)}</p>', *(f"<p>{escape(line)}</p>" for line in rest)]
    for name, line in report.get("commands", {}).items():
        words.append(f'<p class="note">{escape(name)}</p><pre>{escape(line)}</pre>')
    return "".join(words)


def _priced(report: Report) -> str:
    return str(report.get("priced", "the costs measured here"))


def _name(name: str) -> str:
    return NAMES.get(name, name)


def shown(value: Mapping[str, float] | None, prompts: int, digits: int = 2) -> str:
    """``1.43 (1.37–1.49)``; the interval only from ``ENOUGH`` prompts on."""
    if value is None:
        return ""
    words = f"{value['value']:.{digits}f}"
    low, high = value["low"], value["high"]
    return words if prompts < ENOUGH or low == high else f"{words} ({low:.{digits}f}–{high:.{digits}f})"


def _bounds(value: Mapping[str, float], prompts: int) -> tuple[float | None, float | None]:
    return (value["low"], value["high"]) if prompts >= ENOUGH else (None, None)


def _section(title: str, note: str, body: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{body}</section>' if body else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr{' class=best' if index == best else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for index, row in enumerate(rows)
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


# speed


def _speed(report: Report) -> str:
    decoders, prompts = report.get("decoders", {}), report.get("prompts", 0)
    if not decoders:
        return ""
    bars = []
    for name, row in decoders.items():
        speed, replay = row["clock"] or row["replay"], row["replay"]
        if name == "none" or speed is None:
            continue
        low, high = _bounds(speed, prompts)
        other = replay["value"] if row["clock"] and replay else None
        bars.append(
            Bar(row["title"], shown(speed, prompts), speed["value"], low, high, other, best=name == report["best"])
        )
    if report.get("informed") is not None:
        bars.append(Bar("every acceptance probability known", f"{report['informed']:.2f}", other=report["informed"]))
    clocked = any(row["clock"] for row in decoders.values())
    key = '<i class="dot"></i> by the clock &ensp; <i class="other"></i> by replay' if clocked else "by replay"
    note = (
        "Speed over decoding without drafts (dashed line, 1), with 95 % intervals over prompts. By the clock: every "
        f"prompt decoded with every decoder in turn. By replay: from recorded texts at {_priced(report)}, without the "
        "clock's noise."
    )
    if prompts < ENOUGH:
        note += f" {prompts} prompts are too few for intervals."
    body = f'<p class="note key">{key}</p>{intervals(bars)}' if bars else ""
    return _section("How fast", note, body + _speed_table(report, clocked)) + _disagreement(report)


def _speed_table(report: Report, clocked: bool) -> str:
    decoders, prompts = report["decoders"], report["prompts"]
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "decoder": lambda row: row["title"],
        "tokens/s": lambda row: _shown(row["tokens_per_second"], ".0f"),
        "speed-up": lambda row: shown(row["clock"], prompts),
        "by replay": lambda row: shown(row["replay"], prompts),
        "by processor time": lambda row: _shown(row["processor"], ".2f"),
        "J/token": lambda row: _shown(row["joules"], ".2f"),
        "tokens per target forward": lambda row: _shown(row["tokens_per_forward"], ".2f"),
        "accepted": lambda row: _shown(row["accepted"], ".0%"),
    }
    cells = {name: [make(row) for row in decoders.values()] for name, make in columns.items()}
    used = {name: column for name, column in cells.items() if any(column)}
    best = [*decoders].index(report["best"])
    note = (
        "<p class='note'>Tokens per target forward: what one run of the target yields, 1 without drafts. Accepted: the "
        "share of the drafted tokens that the target kept."
        + (" Processor time is lengthened less than the clock's by other work on the machine." if clocked else "")
        + "</p>"
    )
    return _table([*used], [*zip(*used.values(), strict=True)], best) + note


def _disagreement(report: Report) -> str:
    apart = [
        row["title"]
        for row in report["decoders"].values()
        if row["clock"] and row["replay"] and report["prompts"] >= ENOUGH
        and (row["clock"]["low"] > row["replay"]["high"] or row["clock"]["high"] < row["replay"]["low"])
    ]  # fmt: skip
    if not apart:
        return ""
    return (
        f"<p>Clock and replay differ by more than their intervals for {escape(', '.join(apart))}. The replay leaves "
        "out the reading of prompts, and takes the costs of short texts; the clock has the machine's "
        "other work in it: compare the speed-ups by processor time.</p>"
    )


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _by_length(report: Report) -> str:
    prompts = report.get("prompts", 0)
    points = [Point(row["length"], row["value"], *_bounds(row, prompts)) for row in report.get("lengths", [])]
    chart = Chart(
        Axis("tokens in each draft", [point.x for point in points]), Axis("speed over no drafts"),
        {"fixed length": points}, level=1.0,
    )  # fmt: skip
    note = f"By replay at {_priced(report)}. Longer drafts give more tokens in a round, and waste more."
    return _section("Speed by draft length", note, chart.render())


# acceptance


def _by_position(report: Report) -> str:
    lines = {
        _name(domain): [Point(row["position"], row["accepted"]) for row in rows]
        for domain, rows in report.get("acceptance", {}).items()
    }
    positions = sorted({point.x for of in lines.values() for point in of})
    chart = Chart(Axis("position in the draft", positions), Axis("share accepted", least=0, most=1), lines)
    note = (
        "How often the target accepts the token at a position of a draft if it accepted all before it, by the prompts' "
        "domain. Positions that few drafts reached are left out."
    )
    return _section("Acceptance by position", note, chart.render())


def _reliability(report: Report) -> str:
    lines = {
        _name(name): [Point(row["predicted"], row["observed"]) for row in found["reliability"] if row["count"] >= FEW]
        for name, found in report.get("predictors", {}).items()
        if found
    }
    quarters = (0, 0.25, 0.5, 0.75, 1)
    chart = Chart(
        Axis("predicted acceptance", quarters), Axis("true acceptance", least=0, most=1), lines, diagonal=True
    )
    note = "Tokens grouped by predicted acceptance. On the dashed line predictions are right on average."
    return _section("Can predictions be relied on?", note, chart.render())


def _calibration(report: Report) -> str:
    rows = []
    for name, found in report.get("predictors", {}).items():
        for label, row in [] if not found else [("all", found), *((p["position"], p) for p in found["positions"])]:
            numbers = [_shown(row[key], ".3f") for key in ("brier", "brier_constant", "ece", "auroc")]
            rows.append([_name(name) if label == "all" else "", label, str(row["count"]), *numbers])
    note = (
        "Brier score: mean squared distance of predicted from true acceptance, 0 at best; beside it that of the best "
        "constant. ECE: mean distance of the groups above from the dashed line. AUROC: the probability that an "
        "accepted token is ranked above a rejected one, 0.5 by chance. By position in the draft."
    )
    columns = ["predictor", "position", "tokens", "Brier", "constant's", "ECE", "AUROC"]
    return _section("How well acceptance is predicted", note, _table(columns, rows) if rows else "")


# hardware


def _hardware(report: Report) -> str:
    found = report.get("hardware")
    if not found:
        return ""
    names = {name: report["decoders"][name]["family"] or _name(name) for name in found["speeds"]}
    lines = {
        names[name]: [Point(x, y) for x, y in zip(found["ratios"], speeds, strict=True)]
        for name, speeds in found["speeds"].items()
    }
    least, most = found["ratios"][0], found["ratios"][-1]
    marks = {"here": found["here"]} if least <= found["here"] <= most else {}
    chart = Chart(
        Axis("time of a drafted token / time of a target forward", found["ratios"], log=True),
        Axis("tokens per time of a target forward"), lines, marks=marks, level=1.0,
    )  # fmt: skip
    rows = []
    for index, ratio in enumerate(found["ratios"]):
        name = max(found["speeds"], key=lambda name: found["speeds"][name][index])
        speed = found["speeds"][name][index]
        rows.append([f"{ratio:g}", *([names[name], f"{speed:.2f}"] if speed > 1 else [_name("none"), "1"])])
    note = (
        "Tokens in the time that the target takes for one, by how dear drafting is; reading several tokens is taken to "
        "cost the target as much as one. What goes by costs decides by these; of rules the best length or threshold is "
        "taken at each."
    )
    table = _table(["cost ratio", "fastest", "tokens"], rows)
    return _section("On other hardware", note, chart.render() + table)


# texts


def _mosaic(report: Report) -> str:
    found = report.get("mosaic")
    if not found:
        return ""
    decoders, texts = report["decoders"], []
    for name, pieces in found["texts"].items():
        spans = "".join(
            f'<span class="by {piece["by"]}" title="{WRITERS[piece["by"]]}">{_visible(piece)}</span>'
            for piece in pieces
        )
        texts.append(f"<div><p>{escape(decoders[name]['title'])}</p><div class='mosaic'>{spans}</div></div>")
    used = {piece["by"] for pieces in found["texts"].values() for piece in pieces}
    key = " ".join(f'<span class="by {by}">{words}</span>' for by, words in WRITERS.items() if by in used)
    prompt = found["prompt"] if len(found["prompt"]) <= LONGEST else found["prompt"][:LONGEST] + " …"
    body = f'<p class="note">{key}</p><pre>{escape(prompt)}</pre><div class="texts">{"".join(texts)}</div>'
    return _section("Who wrote each token", "One prompt, decoded with the two fastest decoders.", body)


def _visible(piece: Mapping[str, str]) -> str:
    return escape(piece["text"].replace("\n", "⏎") if piece["by"] == "rejected" else piece["text"])


def _how(report: Report) -> str:
    task = report.get("task")
    if not task:
        return ""
    sampling, machine = task["sampling"], report["machine"]
    lines = [
        f"{report['prompts']} prompts, up to {task['max_new_tokens']} tokens each, temperature "
        f"{sampling['temperature']:g}, top-k {sampling['top_k']}, top-p {sampling['top_p']:g}.",
        "Rules without training are tuned on one half of the prompts and judged on the other, both halves in turn.",
        f"{machine['processor']}, {machine['threads']} threads; "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        + ".",
    ]
    if report.get("informed") is not None:
        lines.append(
            "Every acceptance probability known: drafts as long as pay if the target's acceptance probability of each "
            "token were known, in the replay."
        )
    return f"<h2>How it was measured</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
