"""Reports of comparisons with chosen speeds."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from specpilot.common.machine import machine, versions
from specpilot.compare.decoders import NONE, ComparedDecoder
from specpilot.compare.findings import speed_ratio
from specpilot.compare.results import ComparisonReport, DecoderResult, Task, TimedDecoding
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.options import DecodingOptions

BASE = DecodingOptions(draft="d")
of = partial(ComparedDecoder.of, BASE)


def comparison_report(speeds: dict[str, tuple[float, bool]], prompts: int = 20, **more: Any) -> ComparisonReport:
    """Return the report of a timed comparison with half a percent of noise.

    Args:
        speeds: for each decoder its speed-up over no drafts, and whether it is trained.
        prompts: number of prompts.
    """
    everything = {NONE: (1.0, False), **speeds}
    wave = 0.005 * np.cos(np.pi * np.arange(prompts))
    timed = {
        name: [
            TimedDecoding(100, 0, 0, 0, seconds, seconds)
            for seconds in (float(100 / speed * factor) for factor in 1 + wave * (-1) ** (i // 2))
        ]
        for i, (name, (speed, _)) in enumerate(everything.items())
    }
    decoders = {}
    for name, (_, trained) in everything.items():
        clock = speed_ratio(timed[name], timed[NONE])
        decoders[name] = DecoderResult(
            title=name,
            spec=of(name, draft=None) if name == NONE else of(name, length="3"),
            trained=trained,
            clock=clock,
            tokens_per_second=100 * clock.value,
            accepted=None if name == NONE else 0.3,
        )
    report = ComparisonReport(
        target="tiny", draft="d", task=Task(SamplingParams(1.0, 50), 64), prompts=prompts, passes=1, decoders=decoders,
        timed=timed, cost_description="the costs", machine=machine(), versions=versions(),
    )  # fmt: skip
    return replace(report, **more)


def with_figures(report: ComparisonReport, **figures: Any) -> ComparisonReport:
    """The report with figures of all decoders changed."""
    return replace(report, decoders={name: replace(row, **figures) for name, row in report.decoders.items()})
