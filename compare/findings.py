"""Conclusions of a comparison: sentences to act on, and commands. Pure functions of a :class:`.ComparisonReport`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..common.errors import counted, listed
from ..common.files import replacing
from .decoders import NONE
from .drafted import judgements
from .interval import ENOUGH, Interval, ratio_interval, show
from .results import ComparisonReport, DecoderResult, TimedDecoding

DISTURBED = 1.5  # a speed-up by the clock over that by processor time, or the reverse, that other work explains
DEAR_READING, DEAR_DRAFT = 1.5, 0.5  # t_v(3) / t_v(1), and a draft step in target forwards, that are reasons not to
COST_FILE = "cost.json"
EXAMPLE = "Write a short story."


def concluded(report: ComparisonReport, commands: Mapping[str, str]) -> ComparisonReport:
    """The report with its sentences, the name of the best decoder, and ``commands`` to act on it."""
    best, *_ = fastest(report.decoders)
    return replace(report, sentences=sentences(report), commands=dict(commands), best=best)


def fastest(decoders: Mapping[str, DecoderResult], among: Iterable[str] | None = None) -> list[str]:
    """The names of ``among``, or of all decoders, whose speed was measured, the fastest first."""
    names = decoders if among is None else among
    speeds = {name: speed.value for name in names if (speed := decoders[name].speed) is not None}
    return sorted(speeds, key=lambda name: -speeds[name])


def speed_ratio(runs: Sequence[TimedDecoding], baseline: Sequence[TimedDecoding]) -> Interval:
    """Ratio of a decoder's speed by the clock to that of ``baseline``, from their decodings of the same prompts."""
    amounts = [
        np.array(values)
        for each in (runs, baseline)
        for values in ([run.generated for run in each], [run.seconds for run in each])
    ]
    return ratio_interval(*amounts)


def sentences(report: ComparisonReport) -> list[str]:
    """The conclusions, the first one to act on."""
    decoders, count = report.decoders, report.prompts
    name, *_ = fastest(decoders)
    best = decoders[name]
    prompts = f"On your {counted(count, 'prompt')}, at temperature {report.task.sampling.temperature:g},"
    if not pays(report):
        verdict = [f"Do not draft here: {_why_not(report)}.", f"{prompts} {_fastest_draft(report)}"]
        return verdict + texts_compared(report) + _warnings(report)
    line = f"{prompts} {best.title} decodes {show(best.speed, prompts=count)} × as fast as no drafts"
    rivals = [  # the rules without training, or for a rule the trained decoders
        rival for rival, row in decoders.items()
        if row.trained != best.trained and rival != NONE and row.spec is not None and row.spec.engine is None
    ]  # fmt: skip
    for rival in fastest(decoders, rivals)[:1]:
        kind = "the best rule" if best.trained else "the best trained decoder"
        line += f" and {_ratio(report, name, rival)} × {kind} ({decoders[rival].title})"
    lines = [line + ("." if report.timed else f", by replay at {report.priced}.")]
    similar = [row.title for other, row in decoders.items() if other != name and _is_similar(report, name, other)]
    if similar:
        lines.append(f"Within the noise of it: {', '.join(similar)}.")
    replayed = max((row.replay.value for row in decoders.values() if row.replay is not None), default=None)
    if report.informed is not None and replayed is not None and report.informed > replayed:
        lines.append(
            f"A predictor that knew every acceptance probability would reach {report.informed:.2f} × in the "
            f"replay, where the best is at {replayed:.2f} ×."
        )
    return lines + texts_compared(report) + _warnings(report)


def texts_compared(report: ComparisonReport) -> list[str]:
    """A sentence on how many texts with drafts are those without, where the rules promise it; none elsewhere."""
    count = report.passes * report.prompts
    same = {row.title: row.same_texts for row in report.decoders.values() if row.same_texts is not None}
    if not same:
        return []
    total, expected = sum(same.values()), count * len(same)
    line = f"Drafts change no text: {total} of {expected} texts are the same as without drafts, token for token."
    if total == expected:
        return [line]
    fewer = ", ".join(f"{title} {each} of {count}" for title, each in same.items() if each < count)
    return [
        f"{total} of {expected} texts are the same as without drafts, token for token ({fewer}). Rounding decides "
        "where two tokens are nearly equally good."
    ]


def _warnings(report: ComparisonReport) -> list[str]:
    """Sentences about refused decoders, other work on the machine, training on other data, and weak predictors."""
    apart = [
        row.clock.value / row.processor for row in report.decoders.values() if row.clock is not None and row.processor
    ]
    most = max((max(ratio, 1 / ratio) for ratio in apart), default=1.0)
    disturbed = [] if most < DISTURBED else [
        f"Speed-ups by the clock differ up to {most:.1f} times from those by processor time: other work changed the "
        "machine's speed meanwhile. Compare again when it is idle."
    ]  # fmt: skip
    trained = [
        f"{name} was trained on {len(ids)} of these prompts and looks better there than on others: {listed(ids)}."
        for name, ids in report.trained_on.items()
    ]
    trained += [
        f"{name} was trained for the rule {rule}, and drafts are verified by {report.verifier} here: its drafts may "
        "stop too early or too late."
        for name, rule in report.trained_for.items()
    ]
    refused = [f"{name} is left out: {reason}." for name, reason in report.refused.items()]
    return refused + disturbed + trained + judgements(report.predictors)


def pays(report: ComparisonReport) -> bool:
    """Whether the fastest decoder is faster than no drafts beyond noise."""
    best, *_ = fastest(report.decoders)
    speed = report.decoders[best].speed
    return best != NONE and speed is not None and (speed.value if report.prompts < ENOUGH else speed.low) > 1


def _why_not(report: ComparisonReport) -> str:
    if report.reading is not None and report.reading > DEAR_READING:
        return f"reading 3 tokens takes the target {report.reading:.1f} times one"
    if report.ratio is not None and report.ratio > DEAR_DRAFT:
        return f"a draft step takes {report.ratio:.2f} of a target forward"
    accepted = max((row.accepted for row in report.decoders.values() if row.accepted is not None), default=None)
    return "too few drafted tokens are accepted" + ("" if accepted is None else f" ({accepted:.0%} at most)")


def _fastest_draft(report: ComparisonReport) -> str:
    names = fastest(report.decoders, [name for name in report.decoders if name != NONE])
    if not names:
        return "nothing else was compared."
    best = report.decoders[names[0]]
    return f"the fastest with drafts, {best.title}, is at {show(best.speed, prompts=report.prompts)} × no drafts."


def _ratio(report: ComparisonReport, best: str, other: str) -> str:
    if report.timed:
        return show(speed_ratio(report.timed[best], report.timed[other]), prompts=report.prompts)
    speeds = [report.decoders[name].speed for name in (best, other)]
    values = [speed.value for speed in speeds if speed is not None]
    return f"{values[0] / values[1]:.2f}"


def _is_similar(report: ComparisonReport, best: str, other: str) -> bool:
    """Whether the difference of two decoders by the clock is within the noise."""
    if not report.timed or report.prompts < ENOUGH:
        return False
    ratio = speed_ratio(report.timed[best], report.timed[other])
    return ratio.low < 1 < ratio.high


def commands(report: ComparisonReport, folder: Path) -> dict[str, str]:
    """The commands that decode and serve with the winner, or without drafts; none if another engine wins.

    Args:
        folder: where the costs of a winner that uses costs are written.
    """
    best = fastest(report.decoders)[0] if pays(report) else NONE
    spec = report.decoders[best].spec
    if spec is None or spec.engine is not None:
        return {}
    words, sampling = words_of(report, best, folder), report.task.sampling
    options = ["--temperature", f"{sampling.temperature:g}", "--top-p", f"{sampling.top_p:g}"]
    options += ["--top-k", "null" if sampling.top_k is None else str(sampling.top_k)]
    options += [] if report.task.chat else ["--no-chat"]
    return {
        "Decode with it": " ".join(["specpilot generate", *words, *options, f"'{EXAMPLE}'"]),
        "Serve it with": " ".join(["specpilot serve", *words]),
    }


def words_of(report: ComparisonReport, name: str, folder: Path) -> list[str]:
    """The options of a decoder as words of a shell; the measured costs that it uses are written to ``folder``."""
    spec = report.decoders[name].spec
    assert spec is not None
    if not spec.uses_costs or name not in report.costs:
        return spec.words()
    with replacing(folder / COST_FILE) as temporary:
        document = {"cost": report.costs[name].to_dict(), "decoder": name}
        temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return spec.words(folder / COST_FILE)
