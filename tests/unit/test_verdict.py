"""The verdict of a comparison on synthetic results, one row per case."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from specpilot.compare.decoders import NONE
from specpilot.compare.findings import commands, concluded, sentences, winner
from specpilot.compare.interval import Interval
from specpilot.compare.results import ComparisonReport, TimedDecoding
from specpilot.compare.verdict import Answer, Measure, judge, prompts_needed, timed_ratio
from specpilot.controllers.length.cost_model import CostModel

from ..helpers.reports import comparison_report

PAYS, DOES_NOT_PAY, UNDECIDED = Answer.PAYS, Answer.DOES_NOT_PAY, Answer.UNDECIDED
CHEAP = CostModel(0.1, 0.9, 0.1)  # seconds, of a verification of one token: 1
DEAR_DRAFT = CostModel(0.55, 0.95, 0.05)
DEAR_TOKENS = CostModel(0.05, 0.3, 0.7)


class Case(NamedTuple):
    """Speeds of a decoder with drafts, relative to no drafts, and what must be concluded from them.

    Attributes:
        wall, processor: speed-ups.
        noise: relative standard deviation of the wall time of a prompt.
        replay: speed-up by replay; None if there is no replay.
        counters: drafted and accepted tokens, and target forwards, of 100 generated tokens.
    """

    name: str
    wall: float
    processor: float
    answer: Answer
    measure: Measure = Measure.WALL
    noise: float = 0.01
    prompts: int = 20
    replay: float | None = None
    counters: tuple[int, int, int] = (0, 0, 0)
    costs: CostModel | None = None
    words: str = ""


CASES = [
    Case("faster", 1.3, 1.3, PAYS, words="3 decodes 1.30 (1."),
    Case("slower", 0.9, 0.9, DOES_NOT_PAY, words="Drafting does not pay here. On your 20 prompts"),
    Case("as fast", 1.005, 1.005, DOES_NOT_PAY, noise=0.001),  # certainly below a gain worth a draft
    Case("slightly faster, certainly", 1.03, 1.03, PAYS, noise=0.001),
    Case("faster within the noise", 1.05, 1.05, UNDECIDED, noise=0.4, words="more prompts would decide it."),
    Case("slower within the noise", 0.95, 0.95, UNDECIDED, noise=0.4, words="more prompts would decide it."),
    Case("few prompts", 1.5, 1.5, UNDECIDED, prompts=3, words="About 2 more prompts would decide it."),
    Case("busy, slower by the clock", 0.95, 1.12, PAYS, Measure.PROCESSOR, noise=0.05, replay=1.1,
         words="The machine was busy: speed-ups by wall time and by processor time differ by a factor of up to 1.18."),
    Case("busy, faster by the clock", 1.2, 0.9, DOES_NOT_PAY, Measure.PROCESSOR, noise=0.05, replay=0.92),
    Case("busy, without a replay", 0.95, 1.12, PAYS, Measure.PROCESSOR),
    Case("busy, and the replay contradicts", 0.95, 1.12, UNDECIDED, Measure.PROCESSOR, replay=0.9,
         words="More prompts would not decide it."),
    Case("busy, and the gain is noise", 0.9, 1.03, UNDECIDED, Measure.PROCESSOR, noise=0.4, replay=1.1),
    Case("draft steps cost too much", 0.9, 0.9, DOES_NOT_PAY, counters=(150, 50, 50), costs=DEAR_DRAFT,
         words="does not pay here: a draft step takes 0.55 of the time of a verification. On"),
    Case("verification costs too much", 0.8, 0.8, DOES_NOT_PAY, counters=(150, 50, 50), costs=DEAR_TOKENS,
         words="does not pay here: verifying 4.0 tokens takes 3.10 times as long as verifying one. On"),
    Case("few tokens are accepted", 0.8, 0.8, DOES_NOT_PAY, counters=(285, 5, 95), costs=CHEAP,
         words="does not pay here: only 2% of the drafted tokens are accepted. On"),
    Case("slower than the costs explain", 0.8, 0.8, DOES_NOT_PAY, counters=(150, 50, 50), costs=CHEAP,
         words="does not pay here. On"),
]  # fmt: skip


def decodings(case: Case, wall: float, processor: float, seed: int, counters: Sequence[int]) -> list[TimedDecoding]:
    """Return decodings of 100 tokens at two speeds; wall time and processor time have the same noise."""
    noise = np.exp(np.random.default_rng(seed).normal(0, case.noise, case.prompts))
    noise /= noise.mean()
    return [
        TimedDecoding(100, *counters, seconds=float(factor / wall), processor_seconds=float(factor / processor))
        for factor in noise
    ]


def report_of(case: Case, **changes: Any) -> ComparisonReport:
    drafted, accepted, forwards = case.counters
    report = comparison_report({"3": (1.5, False)}, prompts=case.prompts, **changes)
    timed = {
        NONE: decodings(case, 1, 1, 0, (0, 0, 100)),
        "3": decodings(case, case.wall, case.processor, 1, case.counters),
    }
    row = replace(
        report.decoders["3"],
        clock=timed_ratio(timed["3"], timed[NONE], Measure.WALL),
        replay=None if case.replay is None else Interval(case.replay, case.replay - 0.02, case.replay + 0.02),
        tokens_per_forward=100 / forwards if forwards else None,
        accepted=accepted / drafted if drafted else None,
    )
    costs = {} if case.costs is None else {NONE: case.costs}
    machine = replace(report.machine, devices=[])
    return replace(
        report, timed=timed, decoders=report.decoders | {"3": row}, costs=costs, **{"machine": machine} | changes
    )


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_verdict(case: Case) -> None:
    report = report_of(case)
    verdict = judge(report)
    assert (verdict.answer, verdict.measure) == (case.answer, case.measure)
    text = " ".join(sentences(report))
    assert case.words in text
    assert ("The machine was busy" in text) == (case.measure == Measure.PROCESSOR)
    starts = {PAYS: "On your", DOES_NOT_PAY: "Drafting does not pay here", UNDECIDED: "These prompts cannot decide"}
    assert text.startswith(starts[case.answer])


def test_wall_time_decides_with_a_gpu() -> None:
    """Processor time does not measure the work of a GPU."""
    case = next(case for case in CASES if case.name == "busy, without a replay")
    report = report_of(case)
    report = replace(report, machine=replace(report.machine, devices=["a GPU"]))
    assert (judge(report).answer, judge(report).measure) == (DOES_NOT_PAY, Measure.WALL)


def test_replay_decides_where_nothing_was_timed() -> None:
    report = report_of(next(case for case in CASES if case.name == "busy, slower by the clock"))
    rows = {name: replace(row, clock=None) for name, row in report.decoders.items()}
    report = replace(report, decoders=rows, timed={})
    assert (judge(report).answer, judge(report).measure) == (PAYS, Measure.REPLAY)
    assert sentences(report)[0].endswith("3 decodes 1.10 (1.08–1.12) × as fast as no drafts, by replay at the costs.")


def test_the_commands_are_those_of_the_verdict(tmp_path: Any) -> None:
    """On a busy machine, processor time decides instead of wall time."""
    cases = {case.name: report_of(case) for case in CASES}
    for name, decoder in (
        ("busy, slower by the clock", "3"), ("busy, faster by the clock", NONE), ("slower", NONE), ("faster", "3")
    ):  # fmt: skip
        assert winner(cases[name]) == decoder
        assert ("--length 3" in commands(cases[name], tmp_path)["Serve with it"]) == (decoder == "3")
    report = concluded(cases["busy, slower by the clock"], {})
    assert (report.best, report.verdict) == ("3", PAYS)
    assert concluded(cases["few prompts"], {}).verdict == UNDECIDED


def test_a_wider_interval_of_a_slower_decoder_keeps_the_question_open() -> None:
    report = report_of(next(case for case in CASES if case.name == "slower"))
    row = replace(report.decoders["3"], title="other", clock=Interval(0.85, 0.6, 1.3))
    report = replace(report, decoders=report.decoders | {"other": row})
    assert judge(report).answer == UNDECIDED


@pytest.mark.parametrize(
    ("speed", "prompts", "expected"),
    [
        (Interval(1.05, 1.0, 1.1), 20, 1),  # a hair's breadth
        (Interval(1.05, 0.95, 1.16), 20, 70),  # half the width takes four times as many
        (Interval(0.99, 0.9, 1.09), 20, 200),
        (Interval(1.001, 0.9, 1.1), 20, None),
        (Interval(1.5, 1.5, 1.5), 3, 2),
    ],
)  # fmt: skip
def test_the_prompts_that_would_decide(speed: Interval, prompts: int, expected: int | None) -> None:
    assert prompts_needed(speed, prompts) == expected


def test_as_many_more_prompts_decide() -> None:
    """The advice holds for the same noise: with twice as many prompts as advised, the answer is certain."""
    case = next(case for case in CASES if case.name == "faster within the noise")
    prompts_needed = judge(report_of(case)).prompts_needed
    assert prompts_needed is not None
    answers = [judge(report_of(case._replace(prompts=count))).answer for count in (20, 20 + 2 * prompts_needed)]
    assert answers == [UNDECIDED, PAYS]
