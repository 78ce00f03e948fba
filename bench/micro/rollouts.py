"""``specpilot bench rollouts``: tokens per second of batched data generation against a batch-1 loop of transformers.

Both sample from the same model under the same sampling. Data generation also draws and scores the
labels, which the loop does not; its figure is for the whole job.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from rich.console import Console

from ...data_gen.acceptance import AcceptanceDatasetBuilder
from ...data_gen.settings import AcceptanceDataOptions
from ..workloads.assisted import generate, sampling_options


def bench_rollouts(settings: AcceptanceDataOptions, repeats: int, console: Console) -> dict[str, Any]:
    """Time the prompts batched and a spread of twelve of them one by one, in turn; medians and their ratio."""
    generator = AcceptanceDatasetBuilder(settings)
    shard = generator.items
    few = shard[:: max(1, len(shard) // 12)][:12]  # the loop is slow: a spread of the same prompts speaks for it
    model = generator.target.model
    options = sampling_options(generator.sampling)

    def batched() -> float:
        started = time.perf_counter()
        tokens = sum(len(row.x) for row in generator.rows(shard))
        return tokens / (time.perf_counter() - started)

    def one_by_one() -> float:
        started, tokens = time.perf_counter(), 0
        for item in few:
            tokens += len(generate(model, item.ids, max_new_tokens=item.budget, **options))
        return tokens / (time.perf_counter() - started)

    with torch.random.fork_rng():  # transformers samples from the global generator
        torch.manual_seed(settings.seed)
        generator.rows(shard[:8])
        one_by_one()
        pairs = []
        for repeat in range(repeats):
            pairs.append((batched(), one_by_one()))
            console.print(
                f"{repeat + 1}/{repeats}: batched {pairs[-1][0]:,.0f}, one by one {pairs[-1][1]:,.0f} tokens/s"
            )
    return {
        "prompts": len(shard),
        "batch_size": settings.batch_size,
        "tokens_per_second": {
            "specpilot-data": median(a for a, _ in pairs),
            "transformers-generate-batch-1": median(b for _, b in pairs),
        },
        "ratio": median(a / b for a, b in pairs),
        "repeats": repeats,
    }
