"""``specpilot bench ngram``: n-gram drafts, a draft model's, and the choice between them, by the clock.

On prompts that invite copying and on others. The *parts* are the draft model and the n-grams alone, the *mix* chooses
for each round. Draft model and mix have the same length controllers, and the best of each is compared; all of them
decode the same prompts in turn. Tokens per second include the prefill. Beside the wall time, the processor time of the
process is recorded: on a machine that does other work as well, the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from specpilot.compare.interval import ratio_interval, show
from specpilot.compare.load import load
from specpilot.compare.runner import Run, Timed, interleave
from specpilot.compare.table import Table
from specpilot.controllers.length import takes_cost
from specpilot.controllers.length.cost_model import CostModel
from specpilot.infer.costs import quick_costs
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.generation import Generation, Stats

from ..options import NgramBenchOptions

AUTOREGRESSIVE, NGRAM, MODEL, MIX = "autoregressive", "ngram", "model", "mix"
BY_HEAD = " by head"  # n-grams and the mix with a trained copy head
COPYING = "builtin-copy"
GROUPS = {"copying": "prompts that invite copying", "other": "other prompts"}


Runs = Sequence[Sequence[Timed[Generation]]]  # by prompt and repeat
Seconds = Callable[[Timed[Generation]], float]  # wall or processor time
Generate = Callable[..., Generation]


def bench_ngram(options: NgramBenchOptions, console: Console) -> dict[str, Any]:
    """Time every configuration on both groups of prompts.

    Raises:
        InputError: a model, a controller or the cost is missing or does not fit, or a controller that goes by costs
            was made for another pair.
    """
    pair, others = load(options)
    workload = replace(
        options, prompts=COPYING, column="prompt", split="test", domains=None, skip=0, chat=False, system=None
    )
    copying = load(workload, pair)[1]
    cost = quick_costs(pair.target, pair.drafts[0]) if options.cost is None else CostModel.load(options.cost)
    decoders = configurations(pair, [str(length) for length in options.lengths], cost, options.copies)
    result: dict[str, Any] = {"cost": cost.as_dict()}
    for group, prompts in (("copying", copying), ("other", others)):
        runs = {name: _run(generate, prompts, options.sampling) for name, generate in decoders.items()}
        result[group] = summary(interleave(runs, len(prompts), console, repeats=options.repeats, label=GROUPS[group]))
    return result


def configurations(
    pair: SpeculativeDecoder, lengths: Sequence[str], cost: CostModel, copies: str | None = None
) -> dict[str, Generate]:
    """``generate`` of each configuration by name; those that draft with the model have each of ``lengths`` in turn.

    Args:
        copies: name of a trained copy head, with which n-grams and the mix are there once more.
    """
    (draft,), ngrams = pair.drafts, {"": Ngram(cost=cost)}
    if copies is not None:
        ngrams[BY_HEAD] = replace(ngrams[""], predictor=pair.load_copies(copies))
    found: dict[str, Generate] = {
        AUTOREGRESSIVE: SpeculativeDecoder(pair.target, None, pair.tokenizer).generate,
        **{
            f"{NGRAM}{how}": SpeculativeDecoder(pair.target, None, pair.tokenizer, ngram=ngram).generate
            for how, ngram in ngrams.items()
        },
    }
    for spec in lengths:
        length = pair.load_length(spec, cost=cost if takes_cost(spec) else None)
        for name, sources in [(MODEL, None), *((f"{MIX}{how}", ngram) for how, ngram in ngrams.items())]:
            decoder = SpeculativeDecoder(pair.target, draft, pair.tokenizer, length=length, ngram=sources)
            found[f"{name}, {spec}"] = decoder.generate
    return found


def _run(generate: Generate, prompts: Sequence[list[int]], settings: Mapping[str, Any]) -> Run[Generation]:
    return lambda index, repeat: generate(prompts[index], seed=repeat, **settings)


def summary(runs: Mapping[str, Runs]) -> dict[str, Any]:
    """The comparison by wall time and by processor time, and the counters of all configurations."""
    totals = {name: sum((one.value.stats for of in found for one in of), Stats()) for name, found in runs.items()}
    return {
        **_comparison(runs, lambda one: one.seconds),
        "by_processor_time": _comparison(runs, lambda one: one.processor_seconds),
        "block_efficiency": {name: total.block_efficiency for name, total in totals.items()},
        "draft_forwards_per_token": {
            name: total.n_draft_forwards / total.n_generated for name, total in totals.items()
        },
    }


def _comparison(runs: Mapping[str, Runs], seconds: Seconds) -> dict[str, Any]:
    """The best mix and the best of its parts in tokens per second, their ratio with its interval, and all rates."""
    tables = {name: _table(found, seconds) for name, found in runs.items()}
    # Of a pass over all prompts, median of the passes.
    rates = {name: float(np.median(tokens.sum(0) / spent.sum(0))) for name, (tokens, spent) in tables.items()}
    mix = max((name for name in rates if name.startswith(MIX)), key=rates.__getitem__)
    part = max((name for name in rates if name.startswith((MODEL, NGRAM))), key=rates.__getitem__)
    sums = (table.sum(1) for name in (mix, part) for table in tables[name])
    return {
        "mix": rates[mix],
        "best_part": rates[part],
        "names": {"mix": mix, "best_part": part},
        "mix_over_best_part": ratio_interval(*sums).as_dict("ratio"),
        "tokens_per_second": rates,
    }


def _table(runs: Runs, seconds: Seconds) -> tuple[Any, Any]:
    """(prompts, repeats) tokens and seconds."""
    tokens = np.array([[len(one.value.tokens) for one in of_prompt] for of_prompt in runs])
    return tokens, np.array([[seconds(one) for one in of_prompt] for of_prompt in runs])


def as_table(result: Mapping[str, Any]) -> Table:
    """Every configuration on both groups of prompts."""
    columns = {group: f"{prompts}: tokens/s" for group, prompts in GROUPS.items()}
    rows = [
        {
            "configuration": name,
            **{column: f"{result[group]['tokens_per_second'][name]:.0f}" for group, column in columns.items()},
            "tokens per target forward": " / ".join(
                f"{result[group]['block_efficiency'][name]:.2f}" for group in columns
            ),
        }
        for name in result["copying"]["tokens_per_second"]
    ]
    ratios = {column: show(result[group]["mix_over_best_part"], "ratio", 3) for group, column in columns.items()}
    return Table("", [*rows, {"configuration": "best mix over best part", **ratios}])
