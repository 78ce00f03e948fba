"""What rounds of a vLLM engine cost by the number of requests that share them, in seconds of processor time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import linear_regression, median
from typing import TYPE_CHECKING, Any

from ...controllers.acceptance.predictor import AcceptancePredictor
from ...controllers.length import Fixed, RateOptimal, Step
from ...controllers.length.batch_costs import BatchCosts
from ...controllers.length.cost_model import CostModel
from ...controllers.sampling import SamplingParams
from .vllm_engines import import_vllm, model_runner, vllm_sampling

if TYPE_CHECKING:
    from vllm import LLM

DRAFTED = (0, 1, 2, 4)  # tokens a draft
ROUNDS, WARM = 12, 3
PASSES = 4  # over the lengths; of each the fastest counts, since other work on the machine only slows it
PROMPT = 64  # tokens
ACCEPTANCE = 0.6  # of a drafted token, before anything is known
LEAST = 0.1  # least cost of a verification, in rounds without a draft


class Predicting(Fixed):
    """A fixed length that pays for the predictions of a trained controller."""

    def __init__(self, k: int, predictor: AcceptancePredictor) -> None:
        super().__init__(k)
        self.predictor = predictor

    def observe(self, step: Step) -> bool:
        if step.index > self.predictor.lag:
            self.predictor.predict(step)
        return super().observe(step)


def measure(llm: LLM, rows: Sequence[int], sampling: SamplingParams) -> BatchCosts:
    """Time rounds of ``rows`` requests that draft 0, 1, 2 and 4 tokens each; a trained controller predicts for each."""
    drafter = model_runner(llm).drafter
    own = drafter.length
    predictor = own.predictor if isinstance(own, RateOptimal) else None
    costs = []
    try:
        for count in rows:
            times = [math.inf] * len(DRAFTED)
            for place, drafted in [*enumerate(DRAFTED)] * PASSES:
                drafter.length = Fixed(drafted) if predictor is None else Predicting(drafted, predictor)
                times[place] = min(times[place], _round_seconds(llm, count, drafted, sampling) / count)
            costs.append(fitted(times, ACCEPTANCE if predictor is None else predictor.mean))
    finally:
        drafter.length = own
    return BatchCosts(tuple(rows), tuple(costs))


def fitted(times: Sequence[float], acceptance: float) -> CostModel:
    """The cost model of rounds that draft ``DRAFTED`` tokens.

    vLLM verifies drafts with another sampler, so that the first token costs more than each after it. The model is the
    line through the times with drafts, if one of these lengths pays. If none does, a token is as dear as a round
    without it: then nothing is drafted, not even to see whether it pays.

    Args:
        times: seconds of a round for each of ``DRAFTED``.
        acceptance: mean acceptance of a drafted token.
    """
    rates = [
        sum(acceptance**k for k in range(drafted + 1)) / seconds
        for drafted, seconds in zip(DRAFTED, times, strict=True)
    ]
    if max(rates) == rates[0]:
        return CostModel(times[0], times[0], 0.0)
    slope, intercept = linear_regression(DRAFTED[1:], times[1:])
    return CostModel(max(slope, 0.0), max(intercept, LEAST * times[0]), 0.0)


def _round_seconds(llm: LLM, rows: int, drafted: int, sampling: SamplingParams) -> float:
    """The median processor time of a step of the engine in which ``rows`` requests draft ``drafted`` tokens each."""
    rounds = WARM + ROUNDS
    budget = (rounds + 3) * (drafted + 1)
    params = vllm_sampling(sampling, budget, ignore_eos=True)
    own, names = llm.llm_engine, [f"cost-{drafted}-{i}" for i in range(rows)]
    for i, name in enumerate(names):
        own.add_request(name, import_vllm().TokensPrompt(prompt_token_ids=[2 + i] * PROMPT), params)
    seconds: list[float] = []
    drafter = model_runner(llm).drafter
    while len(seconds) < rounds and own.has_unfinished_requests():
        running: Any = drafter.requests
        ready = len(running) == rows  # all prompts are read
        started = time.process_time()
        own.step()
        if ready:
            seconds.append(time.process_time() - started)
    own.abort_request(names)
    while own.has_unfinished_requests():
        own.step()
    own.step()  # the engine releases them
    return median(seconds[WARM:])
