"""Conclusions of a comparison: sentences to act on, and commands. Pure functions of a :class:`.ComparisonReport`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..common.errors import counted, listed
from ..common.files import replacing
from .decoders import NONE
from .drafted import judgements
from .interval import ENOUGH, Interval, show
from .results import ComparisonReport, DecoderResult, TimedDecoding
from .verdict import Answer, Measure, Verdict, judge, timed_ratio

COST_FILE = "cost.json"
EXAMPLE = "Write a short story."


def concluded(report: ComparisonReport, commands: Mapping[str, str]) -> ComparisonReport:
    """Return ``report`` with its conclusions: sentences, verdict, and the name of the best decoder.

    Args:
        report: the report.
        commands: commands that decode and serve with the best decoder, by purpose; stored in the report.
    """
    verdict = judge(report)
    best = verdict.decoder if verdict.answer == Answer.PAYS else fastest(report.decoders)[0]
    return replace(
        report, sentences=_sentences(report, verdict), commands=dict(commands), best=best, verdict=verdict.answer.value
    )


def fastest(decoders: Mapping[str, DecoderResult], among: Iterable[str] | None = None) -> list[str]:
    """Return the names of decoders whose speed was measured, the fastest first.

    Args:
        decoders: results by name.
        among: the names to consider. Default: all.
    """
    names = decoders if among is None else among
    speeds = {name: speed.value for name in names if (speed := decoders[name].speed) is not None}
    return sorted(speeds, key=lambda name: -speeds[name])


def speed_ratio(runs: Sequence[TimedDecoding], baseline: Sequence[TimedDecoding]) -> Interval:
    """Return the ratio of a decoder's speed by the clock to another decoder's speed, with its 95 % interval.

    Args:
        runs: the decodings of the decoder.
        baseline: the other decoder's decodings of the same prompts, in the same order.
    """
    return timed_ratio(runs, baseline, Measure.WALL)


def sentences(report: ComparisonReport) -> list[str]:
    """Return the conclusions, the most important one first."""
    return _sentences(report, judge(report))


def _sentences(report: ComparisonReport, verdict: Verdict) -> list[str]:
    """Return the conclusions that follow from a verdict."""
    if verdict.answer == Answer.PAYS:
        lines = [_gain(report, verdict), *_similar(report, verdict)]
        speeds = [row.replay.value for name, row in report.decoders.items() if name != NONE and row.replay is not None]
        replayed = max(speeds, default=None)
        if report.informed is not None and replayed is not None and report.informed > replayed:
            lines.append(
                f"A predictor that knew every acceptance probability would reach {report.informed:.2f} × in the "
                f"replay; the best decoder reaches {replayed:.2f} ×."
            )
    else:
        lines = [verdict.sentence(report)]
    return [
        *lines,
        *_disturbance(verdict),
        *texts_compared(report),
        *_pairing(report, verdict.measure),
        *_warnings(report),
    ]


def _gain(report: ComparisonReport, verdict: Verdict) -> str:
    """Return a sentence with the speed-up of the best decoder, and its ratio to the best decoder of the other kind.

    A trained decoder is compared with the best rule, and a rule with the best trained decoder.
    """
    assert verdict.decoder is not None
    name = verdict.decoder
    best = report.decoders[name]
    line = (
        f"On your {counted(report.prompts, 'prompt')}, at temperature {report.task.sampling.temperature:g}, "
        f"{best.title} decodes {show(verdict.speed, prompts=report.prompts)} × as fast as no drafts"
    )
    rivals = [
        rival for rival, row in report.decoders.items()
        if row.trained != best.trained and rival != NONE and row.spec is not None and row.spec.engine is None
    ]  # fmt: skip
    for rival in fastest(report.decoders, rivals)[:1]:
        kind = "the best rule" if best.trained else "the best trained decoder"
        ratio = _ratio(report, verdict.measure, name, rival)
        line += f" and {ratio} × {kind} ({report.decoders[rival].title})"
    if verdict.measure == Measure.REPLAY:
        return f"{line}, by replay at {report.cost_description}."
    return line + ("." if verdict.measure == Measure.WALL else f", by {verdict.measure}.")


def _similar(report: ComparisonReport, verdict: Verdict) -> list[str]:
    """Return a sentence with the decoders that are as fast as the best one within the noise; empty without any."""
    assert verdict.decoder is not None
    titles = [
        row.title
        for name, row in report.decoders.items()
        if name != verdict.decoder and _is_similar(report, verdict.measure, verdict.decoder, name)
    ]
    return [f"Within the noise of it: {', '.join(titles)}."] if titles else []


def _disturbance(verdict: Verdict) -> list[str]:
    """Return a sentence on other processes on the machine if wall time and processor time disagree; else none."""
    if not verdict.is_disturbed:
        return []
    return [
        f"The machine was busy: speed-ups by wall time and by processor time differ by a factor of up to "
        f"{verdict.disturbance:.2f}. The conclusion is drawn from processor time and replay; compare again when the "
        "machine is idle."
    ]


def texts_compared(report: ComparisonReport) -> list[str]:
    """Return a sentence with the number of texts that are the same with and without drafts.

    The list is empty if no verification rule promises the same texts.
    """
    count = report.passes * report.prompts
    same = {row.title: row.same_texts for row in report.decoders.values() if row.same_texts is not None}
    if not same:
        return []
    total, expected = sum(same.values()), count * len(same)
    line = f"Drafts change no text: {total} of {expected} texts are the same as without drafts, token for token."
    if total == expected:
        return [line]
    fewer = ", ".join(f"{title} {same_count} of {count}" for title, same_count in same.items() if same_count < count)
    return [
        f"{total} of {expected} texts are the same as without drafts, token for token ({fewer}). The other texts "
        "differ by rounding, at a place where two tokens are nearly equally probable."
    ]


def _pairing(report: ComparisonReport, measure: Measure) -> list[str]:
    """Return a sentence on how much narrower an interval is because two decoders wrote the same sampled tokens.

    The list is empty if no decoder wrote the same tokens, at temperature 0, and for few prompts.
    """
    count = report.passes * report.prompts
    same = [name for name, row in report.decoders.items() if row.same_texts == count and name in report.timed]
    if not same or report.prompts < ENOUGH or report.task.sampling.temperature == 0:
        return []
    name = fastest(report.decoders, same)[0]
    paired, unpaired = (
        timed_ratio(report.timed[name], report.timed[NONE], measure, paired=is_paired) for is_paired in (True, False)
    )
    return [
        f"Speeds are compared on the same tokens: the interval of {report.decoders[name].title} is "
        f"{paired.high - paired.low:.2f} wide, and without this pairing it would be "
        f"{unpaired.high - unpaired.low:.2f} wide."
    ]


def _warnings(report: ComparisonReport) -> list[str]:
    """Return warnings: refused decoders, training on these prompts or for another rule, and weak predictors."""
    trained = [
        f"{name} was trained on {len(ids)} of these prompts ({listed(ids)}), so its results here are too good."
        for name, ids in report.trained_on.items()
    ]
    trained += [
        f"{name} was trained for the verification rule {rule}, but this comparison verifies by {report.verifier}, so "
        "it may decide less well."
        for name, rule in report.trained_for.items()
    ]
    refused = [f"{name} is left out: {reason}." for name, reason in report.refused.items()]
    return refused + trained + judgements(report.predictors)


def winner(report: ComparisonReport) -> str:
    """Return the name of the decoder to use.

    It is the fastest decoder with drafts if drafting pays, ``"none"`` if it does not pay, and the fastest of all
    decoders if the prompts cannot decide.
    """
    verdict = judge(report)
    if verdict.answer == Answer.PAYS and verdict.decoder is not None:
        return verdict.decoder
    return NONE if verdict.answer == Answer.DOES_NOT_PAY else fastest(report.decoders)[0]


def _ratio(report: ComparisonReport, measure: Measure, best: str, rival: str) -> str:
    """Return the ratio of the speeds of two decoders as text, with its interval if both were timed."""
    if measure != Measure.REPLAY:
        return show(timed_ratio(report.timed[best], report.timed[rival], measure), prompts=report.prompts)
    speeds = [report.decoders[name].speed for name in (best, rival)]
    values = [speed.value for speed in speeds if speed is not None]
    return f"{values[0] / values[1]:.2f}"


def _is_similar(report: ComparisonReport, measure: Measure, best: str, rival: str) -> bool:
    """Return true if the difference of two timed decoders is within the noise."""
    if measure == Measure.REPLAY or report.prompts < ENOUGH:
        return False
    ratio = timed_ratio(report.timed[best], report.timed[rival], measure)
    return ratio.low < 1 < ratio.high


def commands(report: ComparisonReport, folder: Path) -> dict[str, str]:
    """Return the commands that decode and serve with the :func:`winner`, by purpose; empty if another engine wins.

    Args:
        report: the report.
        folder: folder to which the measured costs are written if the winner uses costs.
    """
    best = winner(report)
    spec = report.decoders[best].spec
    if spec is None or spec.engine is not None:
        return {}
    words, sampling = words_of(report, best, folder), report.task.sampling
    options = ["--temperature", f"{sampling.temperature:g}", "--top-p", f"{sampling.top_p:g}"]
    options += ["--top-k", "null" if sampling.top_k is None else str(sampling.top_k)]
    options += [] if report.task.chat else ["--no-chat"]
    return {
        "Decode with it": " ".join(["specpilot generate", *words, *options, f"'{EXAMPLE}'"]),
        "Serve with it": " ".join(["specpilot serve", *words]),
    }


def words_of(report: ComparisonReport, name: str, folder: Path) -> list[str]:
    """Return the options of a decoder, each quoted for a shell.

    Args:
        report: the report, which has the decoder's configuration.
        name: the decoder's name.
        folder: folder to which the measured costs are written if the decoder uses costs.
    """
    spec = report.decoders[name].spec
    assert spec is not None
    if not spec.uses_costs or name not in report.costs:
        return spec.words()
    with replacing(folder / COST_FILE) as temporary:
        document = {"cost": report.costs[name].to_dict(), "decoder": name}
        temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return spec.words(folder / COST_FILE)
