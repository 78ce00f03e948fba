"""``specpilot bench vllm``: the plugin's controllers in vLLM against vLLM's own drafts and no drafts.

All engines run in one process, in turn, with one request at a time and with many. The unit is tokens per second of
processor time, which other work on the machine lengthens less than wall time. The controller goes by costs that are
measured first. In float32, a fixed length in the plugin must give vLLM's own counters, greedy texts must be equal, and
sampled ones must have the same distribution.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ...common.files import replacing
from ...controllers.length import takes_cost
from ...controllers.sampling import SamplingParams
from ...data_gen.prompts import load_prompts
from ...infer.loading.names import load_tokenizer
from ...infer.prompting import encode_prompt
from ..options import VllmBenchOptions
from ..runner import Run, interleave
from ..table import Table
from .vllm_engines import ROWS, counters, engine, generate, measure, vllm_sampling

if TYPE_CHECKING:
    from vllm import LLM

CHECKED = 4  # tokens a draft of the checked engines
CHECKED_TOKENS = 64
SAMPLES, TOKENS = 1500, 4  # texts of the chi-square test, and their length
COMMON = 20  # texts that came up less often are counted together
OURS, NONE, FIXED = "ours", "none", "fixed-"
COST_ROWS = (1, 2, 4, 8, 16, 32, 64)
Rates = dict[str, Any]


def bench_vllm(options: VllmBenchOptions, console: Console) -> dict[str, Any]:
    """Check, measure the costs, and time all engines.

    Raises:
        InputError: vLLM is not installed, or a model or controller is missing or does not fit.
    """
    prompts = _prompts(options)
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p)
    found = _checks(options, prompts, sampling) if options.checks else {}
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
    return {"one_by_one": one, "rows_64": many, **found, **cost}


def _settings(options: VllmBenchOptions, cost: str | float) -> dict[str, Any]:
    """The plugin's settings for the controller that is measured."""
    return {"length": options.length} | ({"cost": cost} if takes_cost(options.length) else {})


def _prompts(options: VllmBenchOptions) -> list[list[int]]:
    rows = load_prompts(
        options.prompts, column=options.column, split=options.split, limit=options.limit, skip=options.skip,
        domains=options.domains,
    )  # fmt: skip
    tokenizer = load_tokenizer(options.target)
    return [encode_prompt(tokenizer, row.prompt, chat=options.chat, system=options.system) for row in rows]


def _checks(options: VllmBenchOptions, prompts: list[list[int]], sampling: SamplingParams) -> dict[str, Any]:
    """What must be equal, in float32."""
    pair = options.target, options.draft
    texts = [prompts[i % len(prompts)] for i in range(ROWS)]
    own, steered = fixed_run(*pair, texts, None), fixed_run(*pair, texts, {"length": 4, "drafts": "vllm"})
    plain = engine(*pair, drafted=0, dtype="float32")
    ours = engine(*pair, _settings(options, 0.2), drafted=options.longest, dtype="float32")
    greedy = vllm_sampling(SamplingParams(0.0), options.max_new_tokens)
    pairs = zip(generate(ours, texts, greedy), generate(plain, texts, greedy), strict=True)
    return {
        "fixed_counters_equal": own[-1] == steered[-1],
        "fixed_texts_equal": own[:-1] == steered[:-1],
        "fixed_counters": own[-1],
        "greedy_equal": [sum(one == other for one, other in pairs), len(texts)],
        "chi_square_p": chi_square(ours, plain, prompts[0], sampling),
    }


def fixed_run(
    target: str, draft: str, prompts: Sequence[list[int]], settings: dict[str, Any] | None
) -> tuple[list[list[int]], list[list[int]], dict[str, Any]]:
    """Texts sampled one by one, greedy ones of one batch, and vLLM's counters of both, at a fixed length.

    Args:
        settings: the plugin's; None for vLLM's own drafter.
    """
    llm = engine(target, draft, settings, drafted=CHECKED, dtype="float32")  # the counters begin at 0
    sampling = vllm_sampling(SamplingParams(1.0, None), CHECKED_TOKENS)
    sampled = [generate(llm, [prompt], sampling, seed)[0] for seed, prompt in enumerate(prompts)]
    greedy = generate(llm, prompts, vllm_sampling(SamplingParams(0.0), CHECKED_TOKENS))
    return sampled, greedy, counters(llm)


def chi_square(one: LLM, other: LLM, prompt: list[int], sampling: SamplingParams, samples: int = SAMPLES) -> float:
    """p-value of two engines having the same distribution of short continuations of a prompt."""
    from scipy.stats import chi2_contingency

    params = vllm_sampling(sampling, TOKENS)
    drawn = [Counter(tuple(text) for text in generate(llm, [prompt] * samples, params)) for llm in (one, other)]
    total = drawn[0] + drawn[1]
    common = [text for text, number in total.items() if number >= COMMON]
    table = [[found[text] for text in common] for found in drawn]
    rest = [samples - sum(row) for row in table]
    if sum(rest) >= COMMON:
        table = [[*row, left] for row, left in zip(table, rest, strict=True)]
    return float(chi2_contingency(table).pvalue)


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
