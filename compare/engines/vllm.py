"""``specpilot bench vllm``: the plugin's controllers in vLLM against vLLM's own drafts and no drafts.

All engines run in one process, in turn, with one request at a time and with many. The unit is tokens per second of
processor time, which other work on the machine lengthens less than wall time. The controller goes by costs that are
measured first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ...common.files import replacing
from ...controllers.length import takes_cost
from ...controllers.sampling import SamplingParams
from ..decoders import encoded_prompts
from ..options import VllmBenchOptions
from ..runner import Run, interleave
from ..table import Table
from .vllm_engines import ROWS, engine, generate, measure, vllm_sampling

if TYPE_CHECKING:
    from vllm import LLM

OURS, NONE, FIXED = "ours", "none", "fixed-"
COST_ROWS = (1, 2, 4, 8, 16, 32, 64)
Rates = dict[str, Any]


def bench_vllm(options: VllmBenchOptions, console: Console) -> dict[str, Any]:
    """Measure the costs, and time all engines.

    Raises:
        InputError: vLLM is not installed, or a model or controller is missing or does not fit.
    """
    prompts = encoded_prompts(options)
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p)
    costing = engine(options.target, options.draft, _settings(options, 0.2), drafted=options.longest)
    costs = measure(costing, COST_ROWS, sampling)
    cost = {"cost": costs.at(1).as_dict(), "batch": costs.as_dict()}
    options.cost.parent.mkdir(parents=True, exist_ok=True)
    with replacing(options.cost) as file:
        file.write_text(json.dumps(cost), encoding="utf-8")
    engines: dict[str, LLM] = {NONE: engine(options.target, options.draft, drafted=0)}
    for k in options.fixed:
        engines[f"{FIXED}{k}"] = engine(options.target, options.draft, drafted=k)
    settings = _settings(options, str(options.cost))
    engines[OURS] = engine(options.target, options.draft, settings, drafted=options.longest)
    one = _rates(engines, [[prompt] for prompt in prompts], options, sampling, console)
    full = [prompts[i % len(prompts)] for i in range(ROWS)]
    many = _rates(engines, [full] * options.batches, options, sampling, console)
    return {"one_by_one": one, "rows_64": many, **cost}


def _settings(options: VllmBenchOptions, cost: str | float) -> dict[str, Any]:
    """The plugin's settings for the controller that is measured."""
    return {"length": options.length} | ({"cost": cost} if takes_cost(options.length) else {})


def _rates(
    engines: Mapping[str, LLM],
    batches: list[list[list[int]]],
    options: VllmBenchOptions,
    sampling: SamplingParams,
    console: Console,
) -> Rates:
    """Tokens per second of processor time of each engine over all batches, and which fixed length is best."""
    params = vllm_sampling(sampling, options.max_new_tokens)

    def runs(llm: LLM) -> Run[int]:
        return lambda item, repeat: sum(map(len, generate(llm, batches[item], params, seed=1000 * repeat + item)))

    found = interleave(
        {name: runs(llm) for name, llm in engines.items()}, len(batches), console, repeats=options.repeats,
        label="generations of vLLM",
    )  # fmt: skip
    timed = {name: [one for of_item in items for one in of_item] for name, items in found.items()}
    rates = {
        name: sum(one.value for one in runs) / sum(one.processor_seconds for one in runs)
        for name, runs in timed.items()
    }
    wall = {name: sum(one.value for one in runs) / sum(one.seconds for one in runs) for name, runs in timed.items()}
    best = max((name for name in rates if name.startswith(FIXED)), key=lambda name: rates[name])
    return {
        "ours": rates[OURS],
        "best_fixed": rates[best],
        "none": rates[NONE],
        "best": best,
        "all": rates,
        "by_wall_time": wall,
    }


def as_table(result: Mapping[str, Any]) -> Table:
    """Tokens per second of processor time."""
    rows = []
    for name in ("one_by_one", "rows_64"):
        rates = result[name]
        rows.append(
            {"requests": name.replace("_", " ")}
            | {key: f"{rates[key]:.0f}" for key in (OURS, "best_fixed", NONE)}
            | {
                "best": rates["best"],
                "ours/best fixed": f"{rates[OURS] / rates['best_fixed']:.3f}",
                "ours/none": f"{rates[OURS] / rates[NONE]:.3f}",
            }
        )
    return Table("tokens per second of processor time", rows)
