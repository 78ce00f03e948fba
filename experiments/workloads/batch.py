"""``specpilot bench batch``: tokens per second of many requests by batching method.

*Sizes* decodes the same prompts in batches of 1 to 16, with and without drafts. *Continuous batching* decodes requests
of very different budgets, with a fixed number running at any time. It is compared with fixed batches of that number in
two forms: all rows are computed until the longest request is done, as transformers' ``generate`` does with a padded
batch; or finished rows leave, but their places stay empty. Only requested tokens count.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any

import torch
from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.compare.runner import Run, interleave
from specpilot.controllers.length import Fixed
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import RandomSource
from specpilot.infer.request import Request
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = (1, 2, 4, 8, 16)
LENGTHS = (0, 2, 4)  # draft lengths; 0 is autoregressive
BUDGETS = (8, 128)  # smallest and largest number of new tokens of a request
HEAD_SIZE, VOCAB_SIZE, PROMPT_TOKENS = 64, 49_152, 32  # for the model with random weights


def bench_batch(
    decoder: SpeculativeDecoder, prompts: list[list[int]], sampling: dict[str, Any], repeats: int, console: Console
) -> dict[str, Any]:
    """``tokens_per_second[draft length][batch size]``: medians over ``repeats`` passes, all settings in turn.

    A pass decodes all prompts in batches of the given size; the last batch may be smaller.
    """

    def decode(length: int, size: int) -> Run[int]:
        def run(item: int, repeat: int) -> int:
            tokens = 0
            for start in range(0, len(prompts), size):
                batch = prompts[start : start + size]
                rows = decoder.generate(batch, seed=start, length=_fixed(decoder, length), **sampling)
                tokens += sum(len(row.tokens) for row in rows)
            return tokens

        return run

    runs = {f"{length} {size}": decode(length, size) for length in LENGTHS for size in SIZES}
    rates = passes_per_second(runs, repeats, console)
    return {
        "tokens_per_second": {
            f"fixed-{length}": {str(size): median(rates[f"{length} {size}"]) for size in SIZES} for length in LENGTHS
        }
    }


def passes_per_second(runs: dict[str, Run[int]], repeats: int, console: Console) -> dict[str, list[float]]:
    """Tokens per second of every pass; each run decodes all prompts and returns the number of tokens."""
    found = interleave(runs, 1, console, repeats=repeats, label="passes")
    return {name: [timed.value / timed.seconds for timed in of_name[0]] for name, of_name in found.items()}


CONTINUOUS, LEAVING, FIXED = "continuous", "fixed_batches_leaving", "fixed_batches"
KINDS = (CONTINUOUS, LEAVING, FIXED)


def bench_continuous(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    sampling: SamplingParams,
    console: Console,
    *,
    requests: int,
    running: int,
    lengths: Sequence[int],
    repeats: int,
) -> dict[str, Any]:
    """Continuous batching against fixed batches, in turn: medians of tokens per second, and of their ratios.

    Args:
        requests: number of requests. Their budgets are drawn from ``BUDGETS``, and end tokens are ignored.
        running: number of requests that run together.
        lengths: draft lengths; 0 is autoregressive.
    """
    random = Random(0)
    budgets = [random.randint(*BUDGETS) for _ in range(requests)]
    decoder.scheduler.max_running = running

    def request(length: int, index: int, budget: int) -> Request:
        config = decoder.configured(length=_fixed(decoder, length))
        prompt, rng = prompts[index % len(prompts)], RandomSource(index)
        return decoder.new_request(prompt, sampling, budget, rng, stop_tokens=frozenset(), config=config)

    def decode(length: int, kind: str) -> Run[int]:
        def run(item: int, repeat: int) -> int:
            size = requests if kind == CONTINUOUS else running
            for first in range(0, requests, size):
                batch = range(first, min(first + size, requests))
                longest = max(budgets[i] for i in batch)
                decoder.scheduler.run([request(length, i, longest if kind == FIXED else budgets[i]) for i in batch])
            return sum(budgets)

        return run

    runs = {f"{length} {kind}": decode(length, kind) for length in lengths for kind in KINDS}
    rates = passes_per_second(runs, repeats, console)

    def row(length: int) -> dict[str, float]:
        continuous, leaving, fixed = (rates[f"{length} {kind}"] for kind in KINDS)
        return {
            CONTINUOUS: median(continuous),
            LEAVING: median(leaving),
            FIXED: median(fixed),
            "ratio": median(a / b for a, b in zip(continuous, fixed, strict=True)),
            "ratio_leaving": median(a / b for a, b in zip(continuous, leaving, strict=True)),
        }

    found = {"autoregressive" if length == 0 else f"fixed-{length}": row(length) for length in lengths}
    return {"requests": requests, "running": running, "budgets": list(BUDGETS), "tokens_per_second": found}


def show_continuous(result: dict[str, Any], console: Console) -> None:
    """Print a line for each draft length."""
    for name, rates in result["tokens_per_second"].items():
        console.print(
            f"{name}: {rates[CONTINUOUS]:.0f} tokens/s by continuous batching, {rates[FIXED]:.0f} in fixed batches of "
            f"{result['running']} (ratio {rates['ratio']:.2f}), {rates[LEAVING]:.0f} where finished rows leave them "
            f"(ratio {rates['ratio_leaving']:.2f})"
        )


def _fixed(decoder: SpeculativeDecoder, length: int) -> Fixed | None:
    """The controller of a draft length; None for 0."""
    return Fixed(length) if decoder.drafts else None


def random_prompts(count: int) -> list[list[int]]:
    """Prompts for :func:`random_llama`."""
    random = Random(1)
    return [[random.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def random_llama(shape: str) -> LlamaForCausalLM:
    """A Llama with random weights and realistic proportions; ``"30x576"`` has 30 layers of width 576.

    Raises:
        InputError: ``shape`` is invalid.
    """
    layers, _, width = shape.partition("x")
    if not (
        layers.isdigit() and width.isdigit() and int(layers) > 0 and int(width) > 0 and int(width) % HEAD_SIZE == 0
    ):
        raise InputError(f"shape={shape!r}: give layers and width, a multiple of {HEAD_SIZE}, as in '30x576'")
    heads = int(width) // HEAD_SIZE
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=int(width),
        intermediate_size=int(width) * 8 // 3,
        num_hidden_layers=int(layers),
        num_attention_heads=heads,
        num_key_value_heads=heads // 3 if heads % 3 == 0 else heads,
        max_position_embeddings=2048,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval().requires_grad_(False)  # type: ignore[no-any-return]
