"""The verdict of a comparison: drafting pays, drafting does not pay, or these prompts cannot decide it.

The verdict goes by the speed of the fastest decoder with drafts, relative to decoding without drafts:

* by wall time, as long as processor time agrees;
* by processor time and by replay, if wall time and processor time disagree. Other work on the machine changes wall
  time and hardly changes processor time. With a GPU, wall time always decides: the processor does not do the work;
* by replay, if nothing was timed.

A cause of a loss is named only if the measured costs and counters show it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from ..common.errors import counted
from ..common.record import Record
from .decoders import NONE
from .interval import ENOUGH, Interval, ratio_interval, show
from .results import ComparisonReport, TimedDecoding

BUSY = 1.05  # speed-up by wall time over that by processor time, or the reverse; 1.00 on an idle machine
NEGLIGIBLE = 1.02  # a speed-up that is certainly below this value is not worth a draft model
MOST_PROMPTS = 2000  # more prompts than this are not recommended


class Answer(StrEnum):
    """The answer to the question whether drafting pays. The values are the words in reports."""

    PAYS = "drafting pays"
    DOES_NOT_PAY = "drafting does not pay"
    UNDECIDED = "these prompts cannot decide it"


class Measure(StrEnum):
    """The time by which a speed is measured. The values are the words in reports."""

    WALL = "wall time"
    PROCESSOR = "processor time"
    REPLAY = "replay"


@dataclass(frozen=True)
class Verdict(Record):
    """Answer, and the numbers that it is made of.

    Attributes:
        decoder: name of the fastest decoder with drafts; None if no decoder with drafts was measured.
        measure: time that ``speed`` is measured by.
        speed: speed-up of ``decoder`` over no drafts, with its 95 % interval.
        disturbance: largest factor between a speed-up by wall time and by processor time; 1 without other work.
        cause: reason why drafting does not pay, with its number; None if the numbers do not show one.
        prompts_needed: number of further prompts after which the answer would probably be certain. None if the answer
            is certain already, or if too many prompts would be needed.
    """

    answer: Answer
    decoder: str | None
    measure: Measure
    speed: Interval | None
    disturbance: float = 1.0
    cause: str | None = None
    prompts_needed: int | None = None

    @property
    def is_disturbed(self) -> bool:
        """Return true if wall time and processor time disagree."""
        return self.disturbance >= BUSY

    def sentence(self, report: ComparisonReport) -> str:
        """Return the verdict in words, with the numbers and the names of ``report``."""
        start = f"On your {counted(report.prompts, 'prompt')}, at temperature {report.task.sampling.temperature:g}, "
        if self.decoder is None:
            return "No decoder with drafts was measured, so nothing can be said about drafting."
        title = report.decoders[self.decoder].title
        speed = f"{show(self.speed, prompts=report.prompts)} × as fast as no drafts"
        speed += "" if self.measure == Measure.WALL else f" by {self.measure}"
        fastest = f"{start}the fastest decoder with drafts, {title}, is {speed}."
        if self.answer == Answer.DOES_NOT_PAY:
            cause = "" if self.cause is None else f": {self.cause}"
            return f"Drafting does not pay here{cause}. {fastest}"
        remedy = "More prompts would not decide it"
        if self.prompts_needed is not None:
            remedy = f"About {counted(self.prompts_needed, 'more prompt')} would decide it"
        return f"These prompts cannot decide whether drafting pays. {fastest} {remedy}."


def judge(report: ComparisonReport) -> Verdict:
    """Return the verdict on the decoders of ``report``; the module describes the rules."""
    rows = {name: row for name, row in report.decoders.items() if name != NONE and row.speed is not None}
    wall_speeds = {name: row.clock for name, row in rows.items() if row.clock is not None}
    if not wall_speeds:
        replay = {name: row.replay for name, row in rows.items() if row.replay is not None}
        return _of_measure(report, Measure.REPLAY, replay)
    processor = {} if report.machine.devices else processor_speeds(report)
    factors = [wall_speeds[name].value / speed.value for name, speed in processor.items() if name in wall_speeds]
    disturbance = max((max(factor, 1 / factor) for factor in factors), default=1.0)
    if disturbance < BUSY:
        return _of_measure(report, Measure.WALL, wall_speeds, disturbance)
    verdict = _of_measure(report, Measure.PROCESSOR, processor, disturbance)
    assert verdict.decoder is not None
    replayed = rows[verdict.decoder].replay
    if replayed is not None and {verdict.answer, answer_of(replayed, report.prompts)} == {
        Answer.PAYS, Answer.DOES_NOT_PAY
    }:  # fmt: skip
        return replace(verdict, answer=Answer.UNDECIDED, cause=None)  # more prompts do not end the contradiction
    return verdict


def answer_of(speed: Interval, prompts: int) -> Answer:
    """Return the answer that a speed-up over no drafts gives.

    Drafting pays if the whole 95 % interval is above 1. It does not pay if the interval ends below ``NEGLIGIBLE``.
    Otherwise, and with fewer than ``ENOUGH`` prompts, the prompts cannot decide.

    Args:
        speed: the speed-up and its interval.
        prompts: number of prompts.
    """
    if prompts < ENOUGH:
        return Answer.UNDECIDED
    if speed.high < NEGLIGIBLE:
        return Answer.DOES_NOT_PAY
    return Answer.PAYS if speed.low > 1 else Answer.UNDECIDED


def processor_speeds(report: ComparisonReport) -> dict[str, Interval]:
    """Return the speed-up of each decoder over no drafts by processor time, by the decoder's name.

    Decoders that were not timed are left out.
    """
    baseline = report.timed.get(NONE, [])
    return {
        name: timed_ratio(runs, baseline, Measure.PROCESSOR)
        for name, runs in report.timed.items()
        if name != NONE and runs and all(run.processor_seconds > 0 for run in (*runs, *baseline))
    }


def timed_ratio(
    runs: Sequence[TimedDecoding], baseline: Sequence[TimedDecoding], measure: Measure, *, paired: bool = True
) -> Interval:
    """Return the ratio of the speeds of two decoders on the same prompts, with its 95 % interval.

    Args:
        runs: the decodings of the first decoder.
        baseline: the decodings of the second decoder, of the same prompts in the same order.
        measure: processor time, or any other measure for wall time.
        paired: as for :func:`.ratio_interval`.
    """
    columns = [
        np.array(values)
        for decodings in (runs, baseline)
        for values in (
            [run.generated for run in decodings],
            [run.processor_seconds if measure == Measure.PROCESSOR else run.seconds for run in decodings],
        )
    ]
    return ratio_interval(*columns, paired=paired)


def _of_measure(
    report: ComparisonReport, measure: Measure, speeds: dict[str, Interval], disturbance: float = 1.0
) -> Verdict:
    """Return the verdict that follows from the speed-ups of the decoders by one measure.

    Args:
        report: the report.
        measure: the measure.
        speeds: the speed-ups over no drafts by the decoder's name; empty if none was measured.
        disturbance: as in :class:`Verdict`.
    """
    if not speeds:
        return Verdict(Answer.UNDECIDED, None, measure, None, disturbance)
    decoder = max(speeds, key=lambda name: speeds[name].value)
    answer = answer_of(speeds[decoder], report.prompts)
    if answer == Answer.DOES_NOT_PAY and any(
        answer_of(speed, report.prompts) != Answer.DOES_NOT_PAY for speed in speeds.values()
    ):
        answer = Answer.UNDECIDED  # a slower decoder with a wider interval may be faster than no drafts
    verdict = Verdict(answer, decoder, measure, speeds[decoder], disturbance)
    if answer == Answer.UNDECIDED:
        return replace(verdict, prompts_needed=prompts_needed(speeds[decoder], report.prompts))
    if answer == Answer.DOES_NOT_PAY:
        return replace(verdict, cause=cause_of_loss(report, decoder))
    return verdict


def prompts_needed(speed: Interval, prompts: int) -> int | None:
    """Return the number of further prompts after which the interval of a speed-up would probably decide.

    It decides if it excludes 1 or ends below ``NEGLIGIBLE``. The width of an interval of the logarithm shrinks with the
    square root of the number of prompts. The speed-up is assumed to stay at its present value.

    Args:
        speed: the present speed-up and its interval.
        prompts: the present number of prompts.

    Returns:
        The number, rounded up to one digit; None if it is above ``MOST_PROMPTS`` or no number would decide. With fewer
        than ``ENOUGH`` prompts it is the number of prompts that are missing.
    """
    if prompts < ENOUGH:
        return ENOUGH - prompts
    value, width = math.log(speed.value), math.log(speed.high / speed.low) / 2
    distance = value if value > 0 else math.log(NEGLIGIBLE) - value
    if not 0 < distance < math.inf:
        return None
    further_prompts = prompts * (width / distance) ** 2 - prompts
    if further_prompts > MOST_PROMPTS:
        return None
    digit = int(10 ** max(0, math.floor(math.log10(max(further_prompts, 1)))))
    return max(1, math.ceil(further_prompts / digit)) * digit


def cause_of_loss(report: ComparisonReport, decoder: str) -> str | None:
    """Return the reason why a decoder with drafts is not faster than no drafts, with its number.

    A round has three costs: the verification of one token, the verification of further tokens, and the draft steps.
    The draft steps or the further tokens are the reason if the speed-up would exceed 1 without them. If this holds for
    both, the larger cost is the reason. If it holds for neither, low acceptance is the reason. The costs are those of a
    round with the mean number of drafted tokens, because timed texts have no numbers of single rounds.

    Returns:
        None if the costs and counters are unknown, or explain a speed-up above 1.
    """
    counters, result, costs = report.timed.get(decoder, []), report.decoders[decoder], report.costs.get(NONE)
    drafted, forwards = sum(run.drafted for run in counters), sum(run.target_forwards for run in counters)
    if costs is None or not drafted or not forwards or result.tokens_per_forward is None or result.accepted is None:
        return None
    per_round = drafted / forwards
    verification = costs.verification(per_round + 1) / costs.verification(1)
    draft = (per_round * costs.t_draft + costs.t_draft_start) / costs.verification(1)
    gain = result.tokens_per_forward
    if gain > verification + draft:
        return None  # the costs explain no loss
    without_draft, without_tokens = gain > verification, gain > 1 + draft
    if without_draft and (not without_tokens or draft >= verification - 1):
        step = costs.t_draft / costs.verification(1)
        return f"a draft step takes {step:.2f} of the time of a verification"
    if without_tokens:
        tokens = per_round + 1
        return f"verifying {tokens:.1f} tokens takes {verification:.2f} times as long as verifying one"
    return f"only {result.accepted:.0%} of the drafted tokens are accepted"
