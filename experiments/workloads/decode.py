"""``specpilot bench decode``: the decoder against transformers' generate and assisted generation, same pair, same work.

All configurations decode the same prompts in one process, in turn, prompt by prompt, several times. For all of them,
tokens are those after the prompt, including the end token, and seconds are those of the whole call, including prefill.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.compare.engines.assisted import ASSISTED, Transformers
from specpilot.compare.engines.llama_loops import LOOPS, LlamaLoops
from specpilot.compare.interval import interval, ratio_interval
from specpilot.compare.runner import Run, interleave
from specpilot.compare.table import Table
from specpilot.controllers.length import CumulativeConfidence, Fixed, LengthController
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.costs import quick_costs
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Stats
from specpilot.infer.models import GgufModel, LoadedModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..micro.profile import forwards_of, timed_decoding, watching

FIXED = (1, 2, 3, 4, 5, 6, 7, 8)
CONFIDENCE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
PLAIN, AUTOREGRESSIVE, LLAMA = "transformers-generate", "specpilot-autoregressive", "llama.cpp-autoregressive"


@dataclass(frozen=True)
class Times:
    """Tokens and seconds of one configuration, (prompts, repeats) each, and the counters if it is one of ours."""

    tokens: list[list[int]]
    seconds: list[list[float]]
    stats: Stats = field(default_factory=Stats)

    @property
    def rate(self) -> float:
        """Tokens per second of a pass over all prompts, median over the passes."""
        return float(np.median(np.sum(self.tokens, 0) / np.sum(self.seconds, 0)))

    @property
    def totals(self) -> tuple[Any, Any]:
        """Tokens and seconds over all passes, (prompts,) each."""
        return np.sum(self.tokens, 1), np.sum(self.seconds, 1)


def bench_decode(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    sampling: SamplingParams,
    console: Console,
    *,
    max_new_tokens: int,
    repeats: int,
    controller: str | None,
) -> dict[str, Any]:
    """Time the pair of ``decoder``; ``controller`` names a trained acceptance head for it.

    Raises:
        InputError: the models are encoder-decoders, or their vocabulary sizes differ.
    """
    check_comparable(decoder)
    target, draft = decoder.target.model, decoder.drafts[0].model
    theirs = Transformers(of_transformers(target), of_transformers(draft), sampling, max_new_tokens)
    plain = SpeculativeDecoder(decoder.target, None, decoder.tokenizer)
    settings: dict[str, Any] = {**sampling.as_dict(), "max_new_tokens": max_new_tokens}
    lengths = lengths_of(decoder, controller)

    def transformers(assistance: str | None) -> Run[tuple[int, Stats]]:
        return lambda index, repeat: (len(theirs.generate(prompts[index], assistance)), Stats())

    def ours(decoder: SpeculativeDecoder, length: LengthController) -> Run[tuple[int, Stats]]:
        def run(index: int, repeat: int) -> tuple[int, Stats]:
            generation = decoder.generate(prompts[index], seed=repeat, length=length, **settings)
            return len(generation.tokens), generation.stats

        return run

    runs = {PLAIN: transformers(None)}
    if not decoder.drafts[0].reads_states:  # which transformers does not give
        runs |= {name: transformers(name) for name in ASSISTED}
    if isinstance(target, GgufModel):
        speculates = isinstance(draft, GgufModel)
        loops = LlamaLoops(
            target, draft if isinstance(draft, GgufModel) else None, sampling, max_new_tokens, decoder.stop_tokens
        )

        def llama_cpp(loop: str | None) -> Run[tuple[int, Stats]]:
            return lambda index, repeat: (len(loops.generate(prompts[index], loop, repeat)), Stats())

        runs[LLAMA] = llama_cpp(None)
        runs |= {name: llama_cpp(name) for name in LOOPS if speculates}
    runs[AUTOREGRESSIVE] = ours(plain, Fixed(0))
    runs |= {name: ours(decoder, length) for name, length in lengths.items()}
    with torch.random.fork_rng():
        torch.manual_seed(0)  # transformers samples from the global generator
        found = interleave(runs, len(prompts), console, repeats=repeats)
    times = {
        name: Times(
            [[timed.value[0] for timed in of_prompt] for of_prompt in by_prompt],
            [[timed.seconds for timed in of_prompt] for of_prompt in by_prompt],
            sum((timed.value[1] for of_prompt in by_prompt for timed in of_prompt), Stats()),
        )
        for name, by_prompt in found.items()
    }
    best_fixed = max((name for name in lengths if "fixed" in name), key=lambda name: times[name].rate)
    shares = overhead(decoder, prompts, settings | {"length": lengths[best_fixed]})
    return summary(times) | {"overhead_at": best_fixed} | shares


def of_transformers(model: LoadedModel) -> PreTrainedModel:
    """``model`` itself, or the same weights as transformers reads them from the GGUF file, in float32."""
    if not isinstance(model, GgufModel):
        return model
    path = model.file.path
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    except (ValueError, ImportError, OSError) as error:
        raise InputError(f"{path}: transformers, which is compared with, does not read it ({error})") from error
    return loaded.eval().requires_grad_(False)  # type: ignore[no-any-return]


def check_comparable(decoder: SpeculativeDecoder) -> None:
    """Raise InputError for a pair that transformers' assisted generation does not support."""
    (draft,) = decoder.drafts
    if draft.model.config.is_encoder_decoder:
        raise InputError(f"{draft.model.config.model_type}: an encoder-decoder; bench decode times decoder-only pairs")
    sizes = [model.vocab_size for model in (decoder.target, draft)]
    if sizes[0] != sizes[1] and not draft.reads_states:
        raise InputError(
            f"vocab_size: {sizes[0]} of the target, {sizes[1]} of the draft: transformers' assisted generation, the "
            "baseline of bench decode, needs equal sizes; use 'specpilot bench questions'"
        )


def lengths_of(decoder: SpeculativeDecoder, controller: str | None) -> dict[str, LengthController]:
    """The length controllers to compare, by the names of their configurations."""
    lengths: dict[str, LengthController] = {f"specpilot-fixed-{k}": Fixed(k) for k in FIXED}
    lengths |= {f"specpilot-cumulative-confidence-{c}": CumulativeConfidence(c) for c in CONFIDENCE}
    if controller is not None:
        lengths |= {f"specpilot-head-{h}": decoder.load_length(controller, threshold=h) for h in THRESHOLDS}
        costs = quick_costs(decoder.target, decoder.drafts[0])
        lengths["specpilot-rate-optimal"] = decoder.load_length(controller, cost=costs)
    return lengths


def summary(times: dict[str, Times]) -> dict[str, Any]:
    """Rates of all configurations, the best of each kind, and speed-ups with intervals."""
    kinds = {"transformers-assisted-best": "transformers-assisted-", "specpilot-best": "specpilot-"}
    if LLAMA in times:
        kinds["llama.cpp-best"] = "llama.cpp-"
    groups = {kind: [name for name in times if name.startswith(prefix)] for kind, prefix in kinds.items()}
    best = {kind: max(names, key=lambda name: times[name].rate) for kind, names in groups.items() if names}
    theirs = {kind: name for kind, name in best.items() if kind != "specpilot-best"}
    against = {"transformers-generate": PLAIN, "specpilot-autoregressive": AUTOREGRESSIVE} | theirs
    if LLAMA in times:
        against[LLAMA] = LLAMA
    rates = {name: of_name.rate for name, of_name in times.items()}
    fastest = times[best["specpilot-best"]]
    return {
        "tokens_per_second": rates | {kind: rates[name] for kind, name in best.items()},
        "best": best,
        "intervals": {name: interval(np.divide, *of_name.totals)[1:] for name, of_name in times.items()},
        "speedup_of_specpilot_best": {
            kind: ratio_interval(*fastest.totals, *times[name].totals).as_dict("ratio")
            for kind, name in against.items()
        },
        "block_efficiency": {name: t.stats.block_efficiency for name, t in times.items() if t.stats.n_generated},
        "acceptance_rate": {name: t.stats.acceptance_rate for name, t in times.items() if t.stats.n_drafted},
    }


def overhead(decoder: SpeculativeDecoder, prompts: list[list[int]], settings: dict[str, Any]) -> dict[str, float]:
    """Shares of the wall time of ``generate``, called with the keywords ``settings``.

    Returns:
        overhead_share: time outside model forwards.
        bound_share: time of all forwards, including prefills, if each took the median time of its kind: a lower bound
            for any decoder with the same forwards.
    """
    decoder.generate(prompts[0], **settings)  # warm-up
    with watching(*forwards_of(decoder)) as calls:
        wall = timed_decoding(decoder, prompts, settings)
    return {
        "overhead_share": 1 - sum(map(sum, calls.values())) / wall,
        "bound_share": sum(len(seconds) * float(np.median(seconds)) for seconds in calls.values()) / wall,
    }


def as_table(result: dict[str, Any]) -> Table:
    """Every configuration's rate and ratio to transformers' plain generate; the best of each kind is in bold."""
    rates = result["tokens_per_second"]
    rows = []
    for name in result["intervals"]:
        row = {"configuration": f"[bold]{name}[/bold]" if name in result["best"].values() else name}
        row |= {"tokens/s": f"{rates[name]:.0f}", "× generate": f"{rates[name] / rates[PLAIN]:.2f}"}
        for key, column in (("block_efficiency", "tokens per target forward"), ("acceptance_rate", "acceptance")):
            row[column] = f"{result[key][name]:.2f}" if name in result[key] else ""
        rows.append(row)
    return Table("", rows)
