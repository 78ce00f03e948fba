"""``specpilot-vllm bench``: a controller of the plugin in vLLM, compared with vLLM's drafts and with no drafts.

All engines run in the same process, in turn, with a single request and with many. The unit is tokens per second of
processor time, which other processes on the machine lengthen less than wall time. The costs of the controller are
measured first.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from specpilot.checkpoints import shipped
from specpilot.common.files import replacing, split_revision
from specpilot.compare.runner import Run, Timed, interleave
from specpilot.compare.table import Table
from specpilot.controllers.acceptance.predictor import AcceptancePredictor
from specpilot.controllers.length import LengthController, RateOptimal, Step, takes_cost
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.controllers.length.running_cost import fit_rounds
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.prompts import prompts_of
from specpilot.models.loading.names import load_tokenizer

from .build import hidden_llvmlite, installed_version, repair_sampling
from .options import BenchOptions

if TYPE_CHECKING:
    from vllm import LLM

CELLS = 200 * 2**20  # bytes of an engine's KV cache
ROWS = 64  # maximum number of requests that run together
TURNS, FEW = 14, 16  # turns of each length; half as many with more than FEW requests
DRAFTED = (0, 1, 2, 4)  # numbers of tokens of timed drafts
PROMPT = 64  # tokens of a prompt; after a longer text attention takes longer, and drafts are relatively cheaper
ACCEPTANCE = 0.6  # acceptance of a drafted token without a predictor
GAIN = 1.1  # minimum speed-up of drafting, because times are noisy
SHARED_GAIN = 1.2  # with several requests, whose unequal drafts take a tenth longer than the measured drafts
_engines: list[Any] = []


def import_vllm() -> Any:
    """Return the module ``vllm``, with engines that run in this process.

    Raises:
        InputError: vLLM is not installed.
    """
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    installed_version()
    import vllm

    return vllm


def arguments(
    target: str,
    draft: str,
    settings: dict[str, Any] | None = None,
    *,
    drafted: int,
    dtype: str = "bfloat16",
    draft_sample_method: str = "probabilistic",
    **options: Any,
) -> dict[str, Any]:
    """Return the arguments of ``vllm.LLM``.

    Args:
        target, draft: names of the models.
        settings: settings of the plugin; None runs vLLM without the plugin.
        drafted: ``num_speculative_tokens``; 0 for no drafts.
        dtype: precision of the models.
        draft_sample_method: ``"probabilistic"``, or ``"greedy"``, vLLM's default, of which fewer tokens are accepted.
        options: other arguments.
    """
    target, revision = split_revision(target)
    draft, draft_revision = split_revision(draft)
    speculative = {
        "method": "draft_model",
        "model": str(shipped(draft) or draft),
        "revision": draft_revision,
        "num_speculative_tokens": drafted,
        "draft_sample_method": draft_sample_method,
    }
    return {
        "model": str(shipped(target) or target),
        "revision": revision,
        "dtype": dtype,
        "max_num_seqs": ROWS,
        "enforce_eager": True,
        "disable_log_stats": False,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": CELLS,
        "speculative_config": speculative if drafted else None,
        "additional_config": {} if settings is None else {"specpilot": settings},
        **options,
    }


def engine(*args: Any, **options: Any) -> LLM:
    """Return an engine in this process, in which sampling works; parameters are those of :func:`arguments`."""
    vllm = import_vllm()
    with hidden_llvmlite():
        llm: LLM = vllm.LLM(**arguments(*args, **options))
    keep(llm)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        assert repair_sampling(), "vLLM samples with drafts"
    return llm


def keep(llm: LLM) -> None:
    """Keep an engine until the process ends, because a freed engine ends objects that the process shares."""
    _engines.append(llm)


def model_runner(llm: LLM) -> Any:
    """Return the model runner of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def vllm_sampling(sampling: SamplingParams, max_tokens: int, **options: Any) -> Any:
    """Return vLLM's ``SamplingParams``.

    Args:
        sampling: temperature, top-k and top-p.
        max_tokens: maximum number of new tokens.
        options: other arguments of ``SamplingParams``.
    """
    top_k = 0 if sampling.top_k is None or sampling.temperature == 0 else sampling.top_k
    return import_vllm().SamplingParams(
        temperature=sampling.temperature, top_k=top_k, top_p=sampling.top_p, max_tokens=max_tokens, **options
    )


def generate(llm: LLM, prompts: Sequence[list[int]], sampling: Any, seed: int = 0) -> list[list[int]]:
    """Return the new tokens after each of ``prompts``, which share rounds.

    Args:
        llm: the engine.
        prompts: token ids of the prompts.
        sampling: vLLM's sampling parameters, for all prompts or for each.
        seed: seed of PyTorch's random numbers.
    """
    torch.manual_seed(seed)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


class Planned(LengthController):
    """A length controller that drafts a planned number of tokens, and takes the time of a trained controller.

    Args:
        plan: a list with the number of tokens. Requests have copies of the controller and share the plan.
        predictor: predictor of the trained controller; None without one.
    """

    def __init__(self, plan: list[int], predictor: AcceptancePredictor | None) -> None:
        self.plan, self.predictor = plan, predictor

    def start_round(self) -> bool:
        """Return whether the plan has tokens."""
        return self.plan[0] > 0

    def observe(self, step: Step) -> bool:
        """Predict, and return whether the plan has more tokens."""
        if self.predictor is not None and step.index > self.predictor.lag:
            self.predictor.predict(step)
        return step.index < self.plan[0]


def fitted(times: Sequence[float], acceptance: float, rows: int) -> CostModel:
    """Return the cost model of one of ``rows`` requests, from rounds with ``DRAFTED`` tokens.

    The model is fitted by :func:`.fit_rounds` if one of these lengths is ``GAIN`` times as fast as no draft, or
    ``SHARED_GAIN`` times with several requests. Otherwise a drafted token costs as much as a round, so that nothing is
    drafted, not even as a probe.

    Args:
        times: seconds of a round for each of ``DRAFTED``; the share of a request is a ``rows``-th.
        acceptance: mean acceptance of a drafted token.
        rows: number of requests in the round.
    """
    rates = [
        sum(acceptance**k for k in range(drafted + 1)) / seconds
        for drafted, seconds in zip(DRAFTED, times, strict=True)
    ]
    shares = [seconds / rows for seconds in times]
    if max(rates) < (GAIN if rows == 1 else SHARED_GAIN) * rates[0]:
        return CostModel(shares[0], shares[0], 0.0)
    return fit_rounds((drafted, drafted, share) for drafted, share in zip(DRAFTED, shares, strict=True))


def measure(llm: LLM, rows: Sequence[int], sampling: SamplingParams) -> BatchCosts:
    """Return the costs of rounds for each number of requests in ``rows``, with the time of predictions.

    Args:
        llm: an engine with the plugin.
        rows: numbers of requests, ascending.
        sampling: the sampling parameters.
    """
    drafter = model_runner(llm).drafter
    length, plan = drafter.length, [0]
    predictor = length.predictor if isinstance(length, RateOptimal) else None
    drafter.length = Planned(plan, predictor)
    try:
        times = [_round_seconds(llm, count, plan, sampling) for count in rows]
    finally:
        drafter.length = length
    mean = ACCEPTANCE if predictor is None else predictor.mean
    return BatchCosts(
        tuple(rows),
        tuple(fitted(seconds, mean, count) for count, seconds in zip(rows, times, strict=True)),
    )


def _round_seconds(llm: LLM, rows: int, plan: list[int], sampling: SamplingParams) -> list[float]:
    """Return the median processor time of a step in which ``rows`` requests draft and verify each of ``DRAFTED``
    tokens.

    The lengths take turns, so that other processes on the machine slow all of them. A step verifies the draft of the
    previous step. Each length therefore has two steps in a row, and the second one counts.
    """
    turns = TURNS if rows <= FEW else TURNS // 2
    budget = (turns + 1) * sum(2 * (drafted + 1) for drafted in DRAFTED)
    params = vllm_sampling(sampling, budget, ignore_eos=True)
    core, names = llm.llm_engine, [f"cost-{rows}-{i}" for i in range(rows)]
    for i, name in enumerate(names):
        core.add_request(name, import_vllm().TokensPrompt(prompt_token_ids=[2 + i] * PROMPT), params)
    drafter = model_runner(llm).drafter
    while len(drafter.requests) < rows:  # until all prompts are read
        core.step()
    seconds: dict[int, list[float]] = {drafted: [] for drafted in DRAFTED}
    for drafted in [*DRAFTED] * turns:
        plan[0] = drafted
        core.step()
        started = time.process_time()
        core.step()
        seconds[drafted].append(time.process_time() - started)
    core.abort_request(names)
    while core.has_unfinished_requests():
        core.step()
    core.step()  # the engine releases the requests
    return [median(times) for times in seconds.values()]


PLUGIN, NONE, FIXED = "ours", "none", "fixed-"  # names in results
COST_ROWS = (1, 2, 4, 8, 16, 32, 64)
Rates = dict[str, Any]


def bench_vllm(options: BenchOptions, console: Console) -> dict[str, Any]:
    """Measure the costs, write them to ``options.cost``, time all engines, and return the results as JSON values.

    Raises:
        InputError: vLLM is not installed, or a model or controller is missing or does not fit.
    """
    tokenizer = load_tokenizer(options.target)
    prompts = [row.encode(tokenizer, chat=options.chat, system=options.system) for row in prompts_of(options)]
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p)
    cost_engine = engine(options.target, options.draft, _settings(options, 0.2), drafted=options.longest)
    costs = measure(cost_engine, COST_ROWS, sampling)
    cost = {"cost": costs.at(1).to_dict(), "batch": costs.to_dict()}
    options.cost.parent.mkdir(parents=True, exist_ok=True)
    with replacing(options.cost) as file:
        file.write_text(json.dumps(cost), encoding="utf-8")
    engines: dict[str, LLM] = {NONE: engine(options.target, options.draft, drafted=0)}
    for k in options.fixed:
        engines[f"{FIXED}{k}"] = engine(options.target, options.draft, drafted=k)
    settings = _settings(options, str(options.cost))
    engines[PLUGIN] = engine(options.target, options.draft, settings, drafted=options.longest)
    single = _rates(engines, [[prompt] for prompt in prompts], options, sampling, console)
    full = [prompts[i % len(prompts)] for i in range(ROWS)]
    batched = _rates(engines, [full] * options.batches, options, sampling, console)
    return {"one_by_one": single, "rows_64": batched, **cost}


def _settings(options: BenchOptions, cost: str | float) -> dict[str, Any]:
    """Return the plugin's settings for the controller."""
    return {"length": options.length} | ({"cost": cost} if takes_cost(options.length) else {})


def _rates(
    engines: Mapping[str, LLM],
    batches: list[list[list[int]]],
    options: BenchOptions,
    sampling: SamplingParams,
    console: Console,
) -> Rates:
    """Return tokens per second of processor time of each engine over all batches, and the best fixed length."""
    params = vllm_sampling(sampling, options.max_new_tokens)

    def runs(llm: LLM) -> Run[int]:
        return lambda item, repeat: sum(map(len, generate(llm, batches[item], params, seed=1000 * repeat + item)))

    timed: dict[str, list[Timed[int]]] = {name: [] for name in engines}
    for name, _, run in interleave(
        {name: runs(llm) for name, llm in engines.items()}, len(batches), console, repeats=options.repeats,
        label="generations of vLLM",
    ):  # fmt: skip
        timed[name].append(run)
    rates = {
        name: sum(run.value for run in runs) / sum(run.processor_seconds for run in runs)
        for name, runs in timed.items()
    }
    wall_rates = {
        name: sum(run.value for run in runs) / sum(run.seconds for run in runs) for name, runs in timed.items()
    }
    best = max((name for name in rates if name.startswith(FIXED)), key=lambda name: rates[name])
    return {
        "ours": rates[PLUGIN],
        "best_fixed": rates[best],
        "none": rates[NONE],
        "best": best,
        "all": rates,
        "by_wall_time": wall_rates,
    }


def as_table(result: Mapping[str, Any]) -> Table:
    """Return the table of tokens per second of processor time, of a result of :func:`bench_vllm`."""
    rows = []
    for name in ("one_by_one", "rows_64"):
        rates = result[name]
        rows.append(
            {"requests": name.replace("_", " ")}
            | {key: f"{rates[key]:.0f}" for key in (PLUGIN, "best_fixed", NONE)}
            | {
                "best": rates["best"],
                "ours/best fixed": f"{rates[PLUGIN] / rates['best_fixed']:.3f}",
                "ours/none": f"{rates[PLUGIN] / rates[NONE]:.3f}",
            }
        )
    return Table("tokens per second of processor time", rows)
