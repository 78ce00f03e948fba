"""``specpilot bench decode``: the decoder against transformers' generate and assisted generation, same pair, same work.

All configurations meet the same prompts in one process, in turn, prompt by prompt, several times over. Tokens are
counted one way for all: what came after the prompt, end token included. Seconds are the whole call's, prefill and all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ...controllers.errors import InputError
from ...controllers.length import CumulativeConfidence, Fixed, LengthController
from ...controllers.sampling import SamplingParams
from ...infer.decoder import SpeculativeDecoder
from ...infer.generation import Stats
from ...infer.lengths import load_length
from ...infer.models import LanguageModel, RaggedKVCache, Read
from ..interval import interval
from .assisted import ASSISTED, Transformers

FIXED = (1, 2, 3, 4, 5, 6, 7, 8)
CONFIDENCE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
PLAIN, AUTOREGRESSIVE = "transformers-generate", "specpilot-autoregressive"


@dataclass
class Times:
    """Tokens and seconds of one configuration, (repeats, prompts) each."""

    tokens: list[list[int]] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    @property
    def rate(self) -> float:
        """Tokens per second of a pass over all prompts, median of the passes."""
        return float(np.median(np.sum(self.tokens, 1) / np.sum(self.seconds, 1)))


def rate_interval(times: Times) -> tuple[float, float, float]:
    """Tokens per second over all passes, and its 95 % interval over resampled prompts."""
    return interval(np.divide, np.sum(times.tokens, 0), np.sum(times.seconds, 0))


def speedup(a: Times, b: Times) -> tuple[float, float, float]:
    """Ratio of a's to b's tokens per second over all passes, and its 95 % interval over resampled prompts."""
    totals = [np.sum(x, 0) for x in (a.tokens, a.seconds, b.tokens, b.seconds)]  # (prompts,) each

    def ratio(a_tokens: Any, a_seconds: Any, b_tokens: Any, b_seconds: Any) -> Any:
        return (a_tokens / a_seconds) / (b_tokens / b_seconds)

    return interval(ratio, *totals)


def bench_decode(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    sampling: SamplingParams,
    *,
    max_new_tokens: int,
    repeats: int,
    controller: str | None,
    console: Console,
) -> dict[str, Any]:
    """Measure; ``decoder`` holds the pair, ``controller`` names a trained acceptance head for it, if there is one.

    Raises:
        InputError: it is a pair of encoder-decoders, or its vocabularies are padded to different sizes.
    """
    (draft,) = decoder.drafts
    if draft.model.config.is_encoder_decoder:
        raise InputError(f"{draft.model.config.model_type}: an encoder-decoder; bench decode times decoder-only pairs")
    sizes = [model.config.get_text_config().vocab_size for model in (decoder.target.model, draft.model)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"vocab_size: {sizes[0]} of the target, {sizes[1]} of the draft: transformers' assisted generation, which "
            "bench decode compares with, takes one size; compare with 'specpilot bench questions'"
        )
    theirs = Transformers(decoder.target.model, draft.model, sampling, max_new_tokens)
    plain = SpeculativeDecoder(decoder.target, None, decoder.tokenizer)
    options: dict[str, Any] = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    times: dict[str, Times] = {}

    def ours(decoder: SpeculativeDecoder, length: LengthController, name: str) -> Callable[[int, int], int]:
        def run(repeat: int, index: int) -> int:
            generation = decoder.generate(
                prompts[index], max_new_tokens=max_new_tokens, seed=repeat, length=length, **options
            )
            times[name].stats += generation.stats
            return len(generation.tokens)

        return run

    def transformers(assistance: str | None) -> Callable[[int, int], int]:
        return lambda repeat, index: len(theirs.generate(prompts[index], assistance))

    runs: dict[str, Callable[[int, int], int]] = {PLAIN: transformers(None)}
    runs |= {name: transformers(name) for name in ASSISTED}
    runs[AUTOREGRESSIVE] = ours(plain, Fixed(0), AUTOREGRESSIVE)
    lengths: dict[str, LengthController] = {f"specpilot-fixed-{k}": Fixed(k) for k in FIXED}
    lengths |= {f"specpilot-cumulative-confidence-{c}": CumulativeConfidence(c) for c in CONFIDENCE}
    if controller is not None:
        assert decoder.tokenizer is not None
        pair = decoder.target.model, draft.model, decoder.tokenizer
        lengths |= {f"specpilot-head-{h}": load_length(controller, *pair, threshold=h) for h in THRESHOLDS}
    runs |= {name: ours(decoder, length, name) for name, length in lengths.items()}

    times |= {name: Times() for name in runs}
    names = list(runs)
    columns = (TextColumn("generations"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with torch.random.fork_rng(), Progress(*columns, console=console, transient=True) as progress:
        torch.manual_seed(0)  # transformers samples from the global generator
        task = progress.add_task("", total=repeats * len(prompts) * len(names))
        for name in names:  # warm-up, not counted
            runs[name](0, 0)
            times[name].stats = Stats()
        for repeat in range(repeats):
            for measured in times.values():
                measured.tokens.append([])
                measured.seconds.append([])
            for index in range(len(prompts)):
                turn = (index + repeat) % len(names)  # nobody is always first after the pause
                for name in names[turn:] + names[:turn]:
                    started = time.perf_counter()
                    tokens = runs[name](repeat, index)
                    times[name].seconds[-1].append(time.perf_counter() - started)
                    times[name].tokens[-1].append(tokens)
                    progress.advance(task)
    result = summary(times)
    best_fixed = max((name for name in lengths if "fixed" in name), key=lambda name: times[name].rate)
    result["overhead_at"] = best_fixed
    return result | shares(
        decoder, prompts, options | {"max_new_tokens": max_new_tokens, "length": lengths[best_fixed]}
    )


def summary(times: dict[str, Times]) -> dict[str, Any]:
    """Rates of all configurations, the best of each kind, and speed-ups with intervals."""
    best = {
        kind: max((name for name in times if name.startswith(prefix)), key=lambda name: times[name].rate)
        for kind, prefix in (("transformers-assisted-best", "transformers-assisted-"), ("specpilot-best", "specpilot-"))
    }
    against = {
        "transformers-generate": PLAIN,
        "transformers-assisted-best": best["transformers-assisted-best"],
        "specpilot-autoregressive": AUTOREGRESSIVE,
    }
    rates = {name: result.rate for name, result in times.items()}
    return {
        "tokens_per_second": rates | {kind: rates[name] for kind, name in best.items()},
        "best": best,
        "intervals": {name: rate_interval(result)[1:] for name, result in times.items()},
        "speedup_of_specpilot_best": {
            kind: dict(zip(("ratio", "low", "high"), speedup(times[best["specpilot-best"]], times[name]), strict=True))
            for kind, name in against.items()
        },
        "block_efficiency": {
            name: result.stats.block_efficiency for name, result in times.items() if result.stats.n_generated
        },
        "acceptance_rate": {
            name: result.stats.acceptance_rate for name, result in times.items() if result.stats.n_drafted
        },
    }


def watch(model: LanguageModel) -> dict[int, list[float]]:
    """From now on, how long each forward of ``model`` takes, by the tokens it reads; until ``del model.forward``."""
    seconds: dict[int, list[float]] = {}
    plain = model.forward

    def forward(cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[torch.Tensor, torch.Tensor]:
        started = time.perf_counter()
        result = plain(cache, reads)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        seconds.setdefault(sum(len(read.tokens) for read in reads), []).append(time.perf_counter() - started)
        return result

    model.forward = forward  # type: ignore[method-assign]
    return seconds


def shares(decoder: SpeculativeDecoder, prompts: list[list[int]], sampling: dict[str, Any]) -> dict[str, float]:
    """Shares of the wall time of ``generate`` with the keywords ``sampling``.

    Returns:
        overhead_share: what is spent outside model forwards.
        bound_share: what forwards would take at the median time of their kind, prefills included: the cost model's
            bound, that no decoder making these forwards can pass.
    """
    models = [decoder.target, *decoder.drafts]
    decoder.generate(prompts[0], **sampling)
    watched = [watch(model) for model in models]
    started = time.perf_counter()
    for index, prompt in enumerate(prompts):
        decoder.generate(prompt, seed=index, **sampling)
    wall = time.perf_counter() - started
    for model in models:
        del model.forward
    forwards = [times for seconds in watched for times in seconds.values()]
    return {
        "overhead_share": 1 - sum(map(sum, forwards)) / wall,
        "bound_share": sum(len(times) * float(np.median(times)) for times in forwards) / wall,
    }


def as_table(result: dict[str, Any]) -> Table:
    """Every configuration, its rate and what it is of transformers' plain generate."""
    rates = result["tokens_per_second"]
    table = Table("configuration", "tokens/s", "× generate", "tokens per target forward", "acceptance")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, rate in rates.items():
        if name in result["best"]:
            continue
        efficiency, acceptance = (result[key].get(name) for key in ("block_efficiency", "acceptance_rate"))
        cells = ["" if x is None else f"{x:.2f}" for x in (efficiency, acceptance)]
        style = "bold" if name in result["best"].values() else ""
        table.add_row(name, f"{rate:.0f}", f"{rate / rates[PLAIN]:.2f}", *cells, style=style)
    return table
