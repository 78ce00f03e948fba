"""Tokens per second of batched data generation against a batch-1 loop of transformers.

Both sample from the same model under the same sampling parameters. The figure of data generation includes drawing and
scoring the labels, which the loop does not do.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from rich.console import Console
from specpilot.commands.measuring import begin, finish
from specpilot.compare.engines.assisted import generate, sampling_options
from specpilot.compare.options import RepeatOptions
from specpilot.compare.runner import interleave
from specpilot.data_gen.acceptance import AcceptanceDatasetBuilder
from specpilot.data_gen.options import AcceptanceDataOptions

BATCHED, ONE_BY_ONE = "specpilot-data", "transformers-generate-batch-1"


@dataclass(frozen=True, kw_only=True)
class RolloutsBenchOptions(AcceptanceDataOptions, RepeatOptions):
    """Benchmark."""


def bench_rollouts(settings: AcceptanceDataOptions, repeats: int, console: Console) -> dict[str, Any]:
    """Time all prompts in batches and twelve of them one by one, in turn; return medians and their ratio."""
    builder = AcceptanceDatasetBuilder(settings)
    shard = builder.prompts.items
    few = shard[:: max(1, len(shard) // 12)][:12]  # the loop is slow: an even sample suffices
    model = builder.target.model
    options = sampling_options(builder.sampling)

    def batched(item: int, repeat: int) -> int:
        return sum(len(row.x) for row in builder.make(shard).rows)

    def one_by_one(item: int, repeat: int) -> int:
        return sum(len(generate(model, one.ids, max_new_tokens=one.budget, **options)) for one in few)

    with torch.random.fork_rng():  # transformers samples from the global generator
        torch.manual_seed(settings.seed)
        runs = {BATCHED: batched, ONE_BY_ONE: one_by_one}
        found = interleave(runs, 1, console, repeats=repeats, label="passes")
    rates = {name: [timed.value / timed.seconds for timed in of_name[0]] for name, of_name in found.items()}
    return {
        "prompts": len(shard),
        "batch_size": settings.batch_size,
        "tokens_per_second": {name: median(of_name) for name, of_name in rates.items()},
        "ratio": median(a / b for a, b in zip(rates[BATCHED], rates[ONE_BY_ONE], strict=True)),
        "repeats": repeats,
    }


def main(options: RolloutsBenchOptions) -> None:
    """Time batched data generation against a batch-1 loop of transformers' generate."""
    finish(bench_rollouts(options, options.repeats, begin()), options)
