"""`specpilot bench`: measures the costs of drafting and verifying."""

from __future__ import annotations

from ...compare.options import CostBenchOptions
from .measuring import begin, finish


def cost(options: CostBenchOptions) -> None:
    """Measure the costs of drafting and verifying on this machine."""
    from ...compare.cost import bench_cost, trained_judge
    from ...compare.decoders import load

    console = begin()
    decoder, prompts = load(options)
    judge = None if options.judge is None else trained_judge(decoder, options.judge)
    result = bench_cost(decoder, prompts, console, repeats=options.repeats, sampling=options.sampling, judge=judge)
    for warning in result.warnings:
        console.print(f"warning: {warning}")
    finish(result.to_dict(), options, options.output)
