"""``specpilot bench batch``: tokens per second of many requests, by how they are put together.

Two measurements. *Sizes*: the same prompts in batches of 1 to 16, with and without drafts. *Continuous batching*:
requests of very different budgets, of which a fixed number runs at any time. It is compared with fixed batches of that
number in two forms: every row is computed until the last request is done, as transformers' ``generate`` does with a
padded batch; and rows leave when they are done, but their places stay empty. Only tokens that were asked for count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ...controllers.errors import InputError
from ...controllers.length import Fixed
from ...controllers.sampling import SamplingParams
from ...infer.decoder import SpeculativeDecoder
from ...infer.random_source import RandomSource
from ...infer.request import Request

SIZES = (1, 2, 4, 8, 16)
LENGTHS = (0, 2, 4)  # tokens a draft; 0 is autoregressive
BUDGETS = (8, 128)  # new tokens of a request, drawn between these
HEAD_SIZE, VOCAB_SIZE, PROMPT_TOKENS = 64, 49_152, 32  # of the model with random weights


def bench_batch(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    sampling: dict[str, Any],
    repeats: int,
    on_progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """``tokens_per_second[draft length][batch size]``: medians over ``repeats`` passes, all settings in turn.

    Every pass decodes all prompts, in batches of the size in question, the last perhaps a smaller one.
    """
    rates: dict[tuple[int, int], list[float]] = {(length, size): [] for length in LENGTHS for size in SIZES}
    for repeat in range(repeats + 1):  # the first is warm-up
        for (length, size), passes in rates.items():
            tokens = 0
            started = time.perf_counter()
            for start in range(0, len(prompts), size):
                rows = decoder.generate(
                    prompts[start : start + size], seed=start, length=_fixed(decoder, length), **sampling
                )
                tokens += sum(len(row.tokens) for row in rows)
            if repeat > 0:
                passes.append(tokens / (time.perf_counter() - started))
            on_progress()
    return {
        "tokens_per_second": {
            f"fixed-{length}": {str(size): median(rates[length, size]) for size in SIZES} for length in LENGTHS
        }
    }


CONTINUOUS, LEAVING, FIXED = "continuous", "fixed_batches_leaving", "fixed_batches"


def bench_continuous(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    sampling: SamplingParams,
    *,
    requests: int,
    running: int,
    lengths: Sequence[int],
    repeats: int,
    on_progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Continuous batching against fixed batches, in turn: medians of tokens per second, and of their ratios.

    Args:
        requests: how many there are; their budgets are drawn from ``BUDGETS``, and end tokens are ignored.
        running: how many run together.
        lengths: tokens a draft; 0 is autoregressive.
    """
    random = Random(0)
    budgets = [random.randint(*BUDGETS) for _ in range(requests)]
    scheduler = decoder.scheduler
    scheduler.max_running = running

    def request(length: int, index: int, budget: int) -> Request:
        config = decoder.configured(length=_fixed(decoder, length))
        prompt, rng = prompts[index % len(prompts)], RandomSource(index)
        return decoder.new_request(prompt, sampling, budget, rng, stop_tokens=frozenset(), config=config)

    def rate(length: int, kind: str) -> float:
        started = time.perf_counter()
        size = requests if kind == CONTINUOUS else running
        for first in range(0, requests, size):
            batch = range(first, min(first + size, requests))
            longest = max(budgets[i] for i in batch)  # where nobody leaves, all go on so long
            scheduler.run([request(length, i, longest if kind == FIXED else budgets[i]) for i in batch])
        return sum(budgets) / (time.perf_counter() - started)

    kinds = (CONTINUOUS, LEAVING, FIXED)
    measured: dict[int, list[dict[str, float]]] = {length: [] for length in lengths}
    for repeat in range(repeats + 1):  # the first is warm-up
        for length, passes in measured.items():
            turn = repeat % len(kinds)
            rates = {kind: rate(length, kind) for kind in kinds[turn:] + kinds[:turn]}
            if repeat > 0:
                passes.append(rates)
            on_progress()
    found = {
        "autoregressive" if length == 0 else f"fixed-{length}": {
            **{kind: median(rates[kind] for rates in passes) for kind in kinds},
            "ratio": median(rates[CONTINUOUS] / rates[FIXED] for rates in passes),
            "ratio_leaving": median(rates[CONTINUOUS] / rates[LEAVING] for rates in passes),
        }
        for length, passes in measured.items()
    }
    return {"requests": requests, "running": running, "budgets": list(BUDGETS), "tokens_per_second": found}


def _fixed(decoder: SpeculativeDecoder, length: int) -> Fixed | None:
    """The length to decode with; without a draft there is none to give."""
    return Fixed(length) if decoder.drafts else None


def random_prompts(count: int) -> list[list[int]]:
    """Prompts for :func:`random_llama`."""
    random = Random(1)
    return [[random.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def random_llama(shape: str) -> LlamaForCausalLM:
    """A Llama of random weights and realistic proportions, ``"30x576"``: layers and width.

    Raises:
        InputError: no such shape.
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
