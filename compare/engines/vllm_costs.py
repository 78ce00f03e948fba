"""What rounds of a vLLM engine cost by the number of requests that share them, in seconds of processor time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from ...controllers.length import RateOptimal
from ...controllers.length.cost_model import BatchCosts
from ...controllers.sampling import SamplingParams
from ...infer.batch_costs import ACCEPTANCE, DRAFTED, PROMPT, Planned, fitted
from .vllm_engines import import_vllm, model_runner, vllm_sampling

if TYPE_CHECKING:
    from vllm import LLM

TURNS, FEW = 14, 16  # of each length; half as many with more requests


def measure(llm: LLM, rows: Sequence[int], sampling: SamplingParams) -> BatchCosts:
    """Time rounds of ``rows`` requests that draft 0, 1, 2 and 4 tokens each; a trained controller predicts for each."""
    drafter = model_runner(llm).drafter
    own, plan = drafter.length, [0]
    predictor = own.predictor if isinstance(own, RateOptimal) else None
    drafter.length = Planned(plan, predictor)
    try:
        times = [_round_seconds(llm, count, plan, sampling) for count in rows]
    finally:
        drafter.length = own
    mean = ACCEPTANCE if predictor is None else predictor.mean
    return BatchCosts(
        tuple(rows),
        tuple(fitted(found, mean, count) for count, found in zip(rows, times, strict=True)),
    )


def _round_seconds(llm: LLM, rows: int, plan: list[int], sampling: SamplingParams) -> list[float]:
    """The median processor time of a step in which ``rows`` requests draft and verify each of ``DRAFTED`` tokens.

    The lengths take turns, so that other work on the machine slows all of them. A step verifies what the one before it
    drafted: each length has two in a row, and the second counts.
    """
    turns = TURNS if rows <= FEW else TURNS // 2
    budget = (turns + 1) * sum(2 * (drafted + 1) for drafted in DRAFTED)
    params = vllm_sampling(sampling, budget, ignore_eos=True)
    own, names = llm.llm_engine, [f"cost-{rows}-{i}" for i in range(rows)]
    for i, name in enumerate(names):
        own.add_request(name, import_vllm().TokensPrompt(prompt_token_ids=[2 + i] * PROMPT), params)
    drafter = model_runner(llm).drafter
    while len(drafter.requests) < rows:  # until all prompts are read
        own.step()
    seconds: dict[int, list[float]] = {drafted: [] for drafted in DRAFTED}
    for drafted in [*DRAFTED] * turns:
        plan[0] = drafted
        own.step()
        started = time.process_time()
        own.step()
        seconds[drafted].append(time.process_time() - started)
    own.abort_request(names)
    while own.has_unfinished_requests():
        own.step()
    own.step()  # the engine releases them
    return [median(found) for found in seconds.values()]
