"""Blocks of the documentation that are written from files in docs/results: tables of speeds, and sources.

A block stands between ``<!-- results: KIND FILE; … -->`` and ``<!-- end -->``; a file is named as in a link.
``python -m experiments results --pages`` writes every block again, and a test compares them with the files.

KIND is one of

* ``speeds``: a table of the decoders that ``specpilot compare`` compared, with a column for each ``FILE=heading``, or
  ``FILE@temperature=heading`` for a report of the demo;
* ``compared``: ratios of two decoders' speeds by the clock on the same prompts, with 95 % intervals: a column for each
  ``FILE=heading`` or ``FILE@temperature=heading``, and a row for each ``DECODER over DECODER``. A column
  ``FILE:forwards=heading`` has the ratios of their tokens per target forward;
* ``counts``: speeds, tokens per target forward and acceptance rates of one such report, with 95 % intervals;
* ``ratios``: the table of ``python -m experiments controllers``;
* ``texts``: the table of ``python -m experiments precisions``, with the pairs of decodings of each ``FILE=heading``;
* ``forwards``: the times of target forwards over several tokens, with a row for each ``FILE=heading``;
* ``load``: the table of ``python -m experiments serve``;
* ``adaptive``: the table of ``python -m experiments adaptive-length``;
* ``sweeps``: settings that ``specpilot compare`` recommends beside the fastest ones of ``python -m experiments
  settings-sweep``, with two rows for each ``FILE=heading``;
* ``curve``: the table of ``python -m experiments draft-curve``, with the rows of all files;
* ``source``: a list of files with their commits and machines.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from specpilot.compare.findings import speed_ratio
from specpilot.compare.interval import Interval, interval, ratio_interval, show
from specpilot.compare.results import TimedDecoding

from .studies.draft_curve import name_of

CURVE_SETTINGS = {"vocabulary": "vocabulary", "minutes": "minutes of training"}  # columns of ``curve``
FORWARDS = ":forwards="  # in a column of ``compared``
TOKENS = ("1", "2", "4", "8", "16")  # of the forwards in a table
BLOCK = re.compile(r"(<!-- results: (\w+) (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled_in(page: str, folder: Path) -> str:
    """Return ``page`` with the content of every block made from the files in ``folder``."""

    def block(match: re.Match[str]) -> str:
        start, kind, words, end = match.groups()
        return f"{start}\n{KINDS[kind](words.split('; '), folder)}\n\n{end}"

    return BLOCK.sub(block, page)


def source(content: Mapping[str, Any]) -> str:
    """Return the commits and the machine that a result names in words.

    An example is "commit 848a5ed1, 2 cores of an AMD EPYC, 1 thread".
    """
    commits = list(dict.fromkeys(_values(content, "commit")))
    machine = next(_values(content, "machine"))
    names = [name[:8] + " with uncommitted changes" * name.endswith("+changes") for name in commits]
    text = f"commit{'s' * (len(commits) > 1)} {', '.join(names)}, "
    text += " and ".join(machine["devices"])
    if not machine["devices"]:
        article = "an" if machine["processor"][0] in "AEIOU" else "a"
        text += f"{machine['cores']} cores of {article} {machine['processor'].replace('(R)', '')}"
    return text + f", {machine['threads']} thread{'s' * (machine['threads'] > 1)}"


def _values(content: Any, key: str) -> Iterator[Any]:
    """Yield every value of ``key`` in ``content`` and in the objects in it."""
    if isinstance(content, dict):
        if key in content:
            yield content[key]
        for name, entry in content.items():
            if name != key:
                yield from _values(entry, key)


def _read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / Path(name).name).read_text(encoding="utf-8"))
    return content


def _sources(names: Sequence[str], folder: Path) -> str:
    return "\n".join(f"* [{Path(name).name}]({name}): {source(_read(folder, name))}" for name in names)


def _reports(columns: Sequence[str], folder: Path) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the reports and the headings of columns ``FILE=heading`` or ``FILE@temperature=heading``."""
    reports, headings = [], []
    for column in columns:
        name, _, heading = column.partition("=")
        file, _, temperature = name.partition("@")
        report = _read(folder, file)
        reports.append(report["temperatures"][temperature] if temperature else report)
        headings.append(heading)
    return reports, headings


def _speeds(columns: Sequence[str], folder: Path) -> str:
    """Return the Markdown table of the speed-ups of decoders over decoding without drafts.

    The speed-ups are those by the clock if it was measured, otherwise those by replay.

    Args:
        columns: one column for each report, as ``FILE=HEADING`` or ``FILE@TEMPERATURE=HEADING``.
        folder: folder of the files.
    """
    reports, headings = _reports(columns, folder)
    names = dict.fromkeys(name for report in reports for name in report["decoders"] if name != "none")
    lines = [f"| decoder | {' | '.join(headings)} |", "|" + "---|" * (len(headings) + 1)]
    for name in names:
        cells = [_speed(report["decoders"].get(name)) for report in reports]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    informed = [report.get("informed") for report in reports]
    if any(informed):
        cells = ["" if speed is None else f"{speed:.2f}" for speed in informed]
        lines.append(f"| every acceptance probability known, by replay | {' | '.join(cells)} |")
    return "\n".join(lines)


def _speed(decoder: Mapping[str, Any] | None) -> str:
    speed = decoder and (decoder["clock"] or decoder["replay"])
    if not speed:
        return ""
    return f"{speed['value']:.2f} ({speed['low']:.2f}–{speed['high']:.2f})"


def _compared(words: Sequence[str], folder: Path) -> str:
    """Return the Markdown table of ratios of two decoders, by speed or by tokens per target forward."""
    pairs = [word.split(" over ") for word in words if " over " in word]
    columns = [word for word in words if " over " not in word]
    reports, headings = _reports([column.replace(FORWARDS, "=") for column in columns], folder)
    lines = [f"| compared | {' | '.join(headings)} |", "|" + "---|" * (len(headings) + 1)]
    for decoder, baseline in pairs:
        ratios = []
        for report, column in zip(reports, columns, strict=True):
            runs = ([TimedDecoding.from_dict(run) for run in report["timed"][name]] for name in (decoder, baseline))
            ratios.append(show((_forwards_ratio if FORWARDS in column else speed_ratio)(*runs)))
        lines.append(f"| {decoder} over {baseline} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def _forwards_ratio(runs: Sequence[TimedDecoding], baseline: Sequence[TimedDecoding]) -> Interval:
    """Return the ratio of tokens per target forward to that of ``baseline`` on the same prompts."""
    columns = [
        np.array([getattr(run, name) for run in each], float)
        for each in (runs, baseline)
        for name in ("generated", "target_forwards")
    ]
    return ratio_interval(*columns)


def _counts(names: Sequence[str], folder: Path) -> str:
    """Return the Markdown table of speed-up, tokens per target forward and acceptance rate of a report's decoders."""
    lines = ["| decoder | speed over no drafts | tokens per target forward | accepted |", "|---|---|---|---|"]
    report = _read(folder, names[0])
    for name, decoder in report["decoders"].items():
        if name != "none":
            runs = report.get("timed", {}).get(name, [])
            per_forward, accepted = _rates(decoder, [TimedDecoding.from_dict(run) for run in runs])
            lines.append(f"| {name} | {_speed(decoder)} | {show(per_forward)} | {_percentages(accepted)} |")
    return "\n".join(lines)


def _rates(decoder: Mapping[str, Any], runs: Sequence[TimedDecoding]) -> tuple[Interval, Interval]:
    """Return tokens per target forward and acceptance rate as text.

    Both have intervals over prompts if there are ``runs`` by the clock.
    """
    if not runs:
        values = (float(decoder[name]) for name in ("tokens_per_forward", "accepted"))
        per_forward, accepted = (Interval(value, value, value) for value in values)
        return per_forward, accepted
    columns = {
        name: np.array([getattr(run, name) for run in runs], float)
        for name in ("generated", "target_forwards", "drafted", "accepted")
    }
    return (
        interval(operator.truediv, columns["generated"], columns["target_forwards"]),
        interval(operator.truediv, columns["accepted"], columns["drafted"]),
    )


def _percentages(rate: Interval) -> str:
    limits = "" if rate.low == rate.high else f" ({100 * rate.low:.0f}–{100 * rate.high:.0f})"
    return f"{100 * rate.value:.0f} %{limits}"


def _ratios(names: Sequence[str], folder: Path) -> str:
    """Return the Markdown table of ratios of speeds, with a row for each rule and group and a column per controller."""
    result = _read(folder, names[0])
    by_rule = result["ratios"]
    controllers = next(iter(next(iter(by_rule.values())).values()))
    headings = [f"`{name}` over `{entry['baseline']}`" for name, entry in controllers.items()]
    lines = [f"| rule | prompts | {' | '.join(headings)} |", "|" + "---|" * (len(headings) + 2)]
    for rule, by_group in by_rule.items():
        for group, words in (("in_domain", "of the domains of the training"), ("left_out", "of other domains")):
            if group in by_group:
                ratios = [show(Interval.of(entry["ratio"]), digits=3) for entry in by_group[group].values()]
                lines.append(f"| `{rule}` | {result['prompts'][group]} {words} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def _texts(rows: Sequence[str], folder: Path) -> str:
    """Return the Markdown table of the numbers of equal texts in pairs of decodings with the same seeds."""
    columns = ("models", "texts", "compared with", "same texts", "differences per 1,000 tokens")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        file, _, heading = row.partition("=")
        for pair in _read(folder, file)["pairs"]:
            counts = f"{pair['same']} of {pair['texts']} | {pair['per_thousand']:.1f}"
            lines.append(f"| {heading} | {pair['first']} | {pair['second']} | {counts} |")
    return "\n".join(lines)


def _forwards(rows: Sequence[str], folder: Path) -> str:
    """Return the Markdown table of the milliseconds of a target forward by its number of tokens.

    ``specpilot bench cost`` measured the times.
    """
    lines = [f"| model | {' | '.join(TOKENS)} |", "|" + "---|" * (len(TOKENS) + 1)]
    for row in rows:
        file, _, heading = row.partition("=")
        times = _read(folder, file)["forward"]["t_v"]
        cells = [f"{1000 * times[tokens]:.2f}" for tokens in TOKENS]
        lines.append(f"| {heading} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _load(names: Sequence[str], folder: Path) -> str:
    """Return the Markdown table of the tokens per second of three servers by the number of requests at once."""
    columns = ["requests at once", "controller", "two tokens", "no drafts", "controller over no drafts"]
    columns += ["first token", "next token"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for requests, servers in _read(folder, names[0])["load"].items():
        speeds = [servers[name]["tokens_per_second"] for name in ("ours", "fixed", "none")]
        cells = [*(f"{speed:.0f}" for speed in speeds), f"{speeds[0] / speeds[2]:.2f}"]
        times = [servers["ours"][name] for name in ("time_to_first_token", "inter_token_latency")]
        cells += [f"{1000 * seconds:.1f} ms" for seconds in times]
        lines.append(f"| {requests} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _adaptive(names: Sequence[str], folder: Path) -> str:
    """Return the Markdown table that compares the adaptive scheduler with fixed lengths and vLLM's table, by phase."""
    result = _read(folder, names[0])["simulated"]
    speeds, lengths = result["tokens_per_second"], result["mean_length"]["adaptive"]
    columns = ["requests", "acceptance", "best fixed K", "mean adaptive K", "adaptive over best fixed K"]
    columns += ["adaptive over vLLM's table"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for i, phase in enumerate(result["phases"]):
        over_table = speeds["adaptive"][i] / speeds["vLLM's table"][i]
        cells = [str(phase["requests"]), f"{phase['acceptance']:.2f}", result["best"][i].removeprefix("K = ")]
        cells += [f"{lengths[i]:.1f}", f"{result['share_of_best'][i]:.3f}", f"{over_table:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    cells = ["whole run", "", result["best_of_whole_run"].removeprefix("K = "), "", f"{result['over_best']:.3f}"]
    lines.append(f"| {' | '.join([*cells, format(result['over_table'], '.3f')])} |")
    return "\n".join(lines)


def _sweeps(rows: Sequence[str], folder: Path) -> str:
    """Return the Markdown table of sweeps: the recommended settings by the costs used, and the fastest setting."""
    columns = (
        "engine and draft", "costs measured by", "recommended", "share of the best speed", "fastest", "its speed-up"
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        file, _, heading = row.partition("=")
        result = _read(folder, file)
        speed = show(Interval.from_dict(result["speedup"][result["best"]]))
        for costs, advice in result["advice"].items():
            share = show(Interval.from_dict(advice["share"]))
            settings = _setting(advice["setting"]), share, _setting(result["best"]), speed
            lines.append(f"| {' | '.join((heading, costs, *settings))} |")
    return "\n".join(lines)


def _setting(name: str) -> str:
    """Return words for a setting of ``python -m experiments settings-sweep``, such as "draft model 4"."""
    drafts, _, length = name.rpartition(" ")
    tokens = f"{length} token{'s' * (length != '1')}"
    phrases = {
        "": "no drafts", "draft model": f"{tokens} of the draft model",
        "sampled draft model": f"{tokens} of the draft model, sampled", "copies": f"{tokens} copied",
    }  # fmt: skip
    return phrases[drafts]


def _curve(names: Sequence[str], folder: Path) -> str:
    """Return the Markdown table of the acceptance of trained drafts by the number of tokens that they learned from.

    The rows are those of all files, with the trained drafts before the references. The vocabulary and the minutes of
    training are shown if the files differ in them.
    """
    results = [_read(folder, name) for name in names]
    trained = [(row, result["settings"]) for result in results for row in result["rows"]]
    references = {row["draft"]: row for result in results for row in result["references"]}
    varied = [
        column for name, column in CURVE_SETTINGS.items() if len({result["settings"][name] for result in results}) > 1
    ]
    positions = ["second and third position"] * any(len(row["positions"]) > 1 for row, _ in trained)
    columns = ["draft", "tokens", *varied, "passes over the tokens", "acceptance", *positions, "tokens per round"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row, settings in [*trained, *((row, None) for row in references.values())]:
        cells = dict.fromkeys(columns, "") | {
            "draft": name_of(row["draft"]) if settings else f"`{row['draft']}`, not trained further",
            "acceptance": show(Interval.from_dict(row["acceptance"]), 3),
            "second and third position": ", ".join(f"{each:.3f}" for each in row["positions"][1:]),
            "tokens per round": format(row["round"], ".2f"),
        }
        if settings:
            cells["tokens"] = f"{row['tokens']:,}"
            cells |= {column: f"{settings[name]:,g}" for name, column in CURVE_SETTINGS.items()}
            cells["passes over the tokens"] = format(row["passes"], ".1f")
            if row["draft"] in settings.get("continued", ()):  # it keeps its vocabulary
                cells |= {"draft": f"`{row['draft']}`, trained further", "vocabulary": ""}
        lines.append(f"| {' | '.join(cells[column] for column in columns)} |")
    return "\n".join(lines)


KINDS: dict[str, Callable[[Sequence[str], Path], str]] = {
    "speeds": _speeds, "compared": _compared, "counts": _counts, "ratios": _ratios, "texts": _texts,
    "forwards": _forwards, "load": _load,
    "adaptive": _adaptive, "sweeps": _sweeps, "curve": _curve,
    "source": _sources,
}  # fmt: skip
