"""What a comparison found: a sentence to act on, and commands. Pure functions of what ``report.json`` holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import counted, listed
from ..common.files import replacing
from ..common.json_file import build
from .decoders import NONE, ComparedDecoder
from .drafted import judgements
from .interval import ENOUGH, Interval, ratio_interval, show

DISTURBED = 1.5  # a speed-up by the clock over that by processor time, or the reverse, that other work explains
DEAR_READING, DEAR_DRAFT = 1.5, 0.5  # t_v(3) / t_v(1), and a draft step in target forwards, that are reasons not to
COST_FILE = "cost.json"
EXAMPLE = "Write a short story."

Report = Mapping[str, Any]


def concluded(report: Report, commands: Mapping[str, str]) -> dict[str, Any]:
    """The report with its sentences, the best decoder, and commands to act on it."""
    best, *_ = fastest(report["decoders"])
    return {"sentences": sentences(report), "commands": dict(commands), "best": best, **report}


def speed(row: Report) -> Any:
    """A decoder's speed-up by the clock if it was measured, else by replay."""
    return row["clock"] or row["replay"]


def fastest(rows: Mapping[str, Report], among: Iterable[str] | None = None) -> list[str]:
    """The decoders ``among`` those of ``rows`` whose speed is known, the fastest first."""
    known = [name for name in (rows if among is None else among) if speed(rows[name]) is not None]
    return sorted(known, key=lambda name: -speed(rows[name])["value"])


def over(runs: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]]) -> Interval:
    """Ratio of two decoders' speeds by the clock, from their records by prompt."""
    amounts = [np.array([run[key] for run in each]) for each in (runs, others) for key in ("generated", "seconds")]
    return ratio_interval(*amounts)


def sentences(report: Report) -> list[str]:
    """What was found, the first one to act on."""
    rows, count = report["decoders"], report["prompts"]
    best, *_ = fastest(rows)
    prompts = f"On your {counted(count, 'prompt')}, at temperature {report['task']['sampling']['temperature']:g},"
    if not pays(report):
        return [f"Do not draft here: {_why_not(report)}.", f"{prompts} {_all_levels(report)}", *_judgements(report)]
    line = f"{prompts} {rows[best]['title']} decodes {show(speed(rows[best]), prompts=count)} × as fast as no drafts"
    trained = rows[best]["trained"]
    rivals = [  # the best rule without training, or for a rule the best trained decoder
        name for name, row in rows.items()
        if row["trained"] != trained and name != NONE and row["spec"]["engine"] is None
    ]  # fmt: skip
    for other in fastest(rows, rivals)[:1]:
        kind = "the best rule" if trained else "the best trained decoder"
        line += f" and {_ratio(report, best, other)} × {kind} ({rows[other]['title']})"
    lines = [line + ("." if report["timed"] else f", by replay at {report['priced']}.")]
    level = [row["title"] for name, row in rows.items() if name != best and _level(report, best, name)]
    if level:
        lines.append(f"Within the noise of it: {', '.join(level)}.")
    reached = max((row["replay"]["value"] for row in rows.values() if row["replay"] is not None), default=None)
    if report["informed"] is not None and reached is not None and report["informed"] > reached:
        lines.append(
            f"A predictor that knew every acceptance probability would reach {report['informed']:.2f} × in the "
            f"replay, where the best is at {reached:.2f} ×."
        )
    return lines + _judgements(report)


def _judgements(report: Report) -> list[str]:
    """What was left out, other work on the machine, decoders trained on the prompts, and predictors of little use."""
    rows = report["decoders"].values()
    apart = [row["clock"]["value"] / row["processor"] for row in rows if row["clock"] and row["processor"]]
    most = max((max(ratio, 1 / ratio) for ratio in apart), default=1.0)
    said = [] if most < DISTURBED else [
        f"Speed-ups by the clock differ up to {most:.1f} times from those by processor time: other work changed the "
        "machine's speed meanwhile. Compare again when it is idle."
    ]  # fmt: skip
    trained = [
        f"{name} was trained on {len(ids)} of these prompts and looks better there than on others: {listed(ids)}."
        for name, ids in report.get("trained_on", {}).items()
    ]
    refused = [f"{name} is left out: {reason}." for name, reason in report.get("refused", {}).items()]
    return refused + said + trained + judgements(report.get("predictors", {}))


def pays(report: Report) -> bool:
    """Whether the fastest decoder is faster than no drafts beyond noise."""
    best, *_ = fastest(report["decoders"])
    found = speed(report["decoders"][best])
    return best != NONE and bool((found["value"] if report["prompts"] < ENOUGH else found["low"]) > 1)


def _why_not(report: Report) -> str:
    if report["reading"] is not None and report["reading"] > DEAR_READING:
        return f"reading 3 tokens takes the target {report['reading']:.1f} times one"
    if report["ratio"] is not None and report["ratio"] > DEAR_DRAFT:
        return f"a draft step takes {report['ratio']:.2f} of a target forward"
    accepted = max(
        (row["accepted"] for row in report["decoders"].values() if row["accepted"] is not None), default=None
    )
    return "too few drafted tokens are accepted" + ("" if accepted is None else f" ({accepted:.0%} at most)")


def _all_levels(report: Report) -> str:
    rows = report["decoders"]
    found = fastest(rows, [name for name in rows if name != NONE])
    if not found:
        return "nothing else was compared."
    ratio = show(speed(rows[found[0]]), prompts=report["prompts"])
    return f"the fastest with drafts, {rows[found[0]]['title']}, is at {ratio} × no drafts."


def _ratio(report: Report, best: str, other: str) -> str:
    if report["timed"]:
        return show(over(report["timed"][best], report["timed"][other]), prompts=report["prompts"])
    values = (report["decoders"][name]["replay"]["value"] for name in (best, other))
    return f"{next(values) / next(values):.2f}"


def _level(report: Report, best: str, other: str) -> bool:
    if not report["timed"] or report["prompts"] < ENOUGH:
        return False
    ratio = over(report["timed"][best], report["timed"][other])
    return ratio.low < 1 < ratio.high


def commands(report: Report, folder: Path) -> dict[str, str]:
    """The commands that decode and serve with the winner, or without drafts.

    Args:
        folder: where the costs of a winner that uses costs are written.
    """
    best = fastest(report["decoders"])[0] if pays(report) else NONE
    if report["decoders"][best]["spec"]["engine"] is not None:
        return {}
    words, sampling = words_of(report, best, folder), report["task"]["sampling"]
    drawn = ["--temperature", f"{sampling['temperature']:g}", "--top-p", f"{sampling['top_p']:g}"]
    drawn += ["--top-k", "null" if sampling["top_k"] is None else str(sampling["top_k"])]
    drawn += [] if report["task"]["chat"] else ["--no-chat"]
    return {
        "Decode with it": " ".join(["specpilot generate", *words, *drawn, f"'{EXAMPLE}'"]),
        "Serve it with": " ".join(["specpilot serve", *words]),
    }


def words_of(report: Report, name: str, folder: Path) -> list[str]:
    """The options of a decoder as words of a shell; the measured costs that it goes by are written to ``folder``."""
    spec = build(ComparedDecoder, report["decoders"][name]["spec"], name)
    if not spec.uses_costs or name not in report["costs"]:
        return spec.words()
    with replacing(folder / COST_FILE) as temporary:
        document = {"cost": report["costs"][name], "decoder": name}
        temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return spec.words(folder / COST_FILE)
