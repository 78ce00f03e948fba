"""Measures what rounds cost that several requests share (:mod:`~specpilot.controllers.length.batch_costs`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import linear_regression, median

from ..common.errors import InputError
from ..controllers.acceptance.predictor import AcceptancePredictor
from ..controllers.length import LengthController, RateOptimal, Step
from ..controllers.length.cost_model import BatchCosts, CostModel
from .decoder import SpeculativeDecoder
from .random_source import RandomSource

DRAFTED = (0, 1, 2, 4)  # tokens a draft
TURNS, FEW = 8, 16  # rounds of each length; half as many with more requests
PROMPT = 64  # tokens; attention takes longer after a longer text, and drafts are then relatively cheaper
ACCEPTANCE = 0.6  # of a drafted token, if there is no predictor that knows better
GAIN = 1.1  # least gain of drafting, since times are noisy
SHARED_GAIN = 1.2  # with several requests, whose unequal drafts take a tenth longer than the measured ones
LEAST = 0.1  # least cost of a verification, in rounds without a draft


class Planned(LengthController):
    """Drafts as many tokens as the plan says, and pays for the predictions of a trained controller.

    Args:
        plan: its only element is the number of tokens; requests have copies of the controller, and one plan.
    """

    def __init__(self, plan: list[int], predictor: AcceptancePredictor | None) -> None:
        self.plan, self.predictor = plan, predictor

    def start_round(self) -> bool:
        return self.plan[0] > 0

    def observe(self, step: Step) -> bool:
        if self.predictor is not None and step.index > self.predictor.lag:
            self.predictor.predict(step)
        return step.index < self.plan[0]


def batch_costs(decoder: SpeculativeDecoder, rows: Sequence[int]) -> BatchCosts:
    """Time rounds of ``rows`` requests that draft 0, 1, 2 and 4 tokens each; a trained controller predicts for each.

    Args:
        decoder: nothing else may use it meanwhile.

    Raises:
        InputError: more requests than the decoder runs together.
    """
    most = decoder.scheduler.max_running
    if max(rows) > most:
        raise InputError(f"batch={max(rows)}: the decoder runs at most {most} requests together; give fewer")
    predictor = decoder.length.predictor if isinstance(decoder.length, RateOptimal) else None
    mean = ACCEPTANCE if predictor is None else predictor.mean
    return BatchCosts(
        tuple(rows),
        tuple(fitted(_round_seconds(decoder, count, predictor), mean, count) for count in rows),
    )


def fitted(times: Sequence[float], acceptance: float, rows: int) -> CostModel:
    """The cost model of one of ``rows`` requests in rounds that draft ``DRAFTED`` tokens each.

    Rounds without drafts need no masks, and in vLLM another sampler. The model is the time without drafts and the line
    through the times with drafts, if one of these lengths is ``GAIN`` times as fast as none, or ``SHARED_GAIN`` times
    with several requests. Otherwise a token is as dear as a round without it: then
    nothing is drafted, not even to see whether it pays.

    Args:
        times: seconds of a round for each of ``DRAFTED``; a request's share is a ``rows``-th.
        acceptance: mean acceptance of a drafted token.
    """
    rates = [
        sum(acceptance**k for k in range(drafted + 1)) / seconds
        for drafted, seconds in zip(DRAFTED, times, strict=True)
    ]
    shares = [seconds / rows for seconds in times]
    if max(rates) < (GAIN if rows == 1 else SHARED_GAIN) * rates[0]:
        return CostModel(shares[0], shares[0], 0.0)
    slope, intercept = linear_regression(DRAFTED[1:], shares[1:])
    alone = max(LEAST * shares[0], min(intercept, shares[0]))
    return CostModel(max(slope, 0.0), alone, 0.0, max(0.0, intercept - alone))


def _round_seconds(decoder: SpeculativeDecoder, rows: int, predictor: AcceptancePredictor | None) -> list[float]:
    """The median time of a round in which ``rows`` requests draft each of ``DRAFTED`` tokens.

    The lengths take turns, so that other work on the machine slows all of them. Each has two rounds in a row, and the
    second counts: the first one reads what shorter drafts have left unread.
    """
    contexts = [model.context for model in (decoder.target, *decoder.drafts) if model.context is not None]
    room = min(contexts, default=PROMPT * 2)
    prompt = [0] * min(PROMPT, room // 4)
    turns = TURNS if rows <= FEW else TURNS // 2
    plan, sampling = [0], decoder.defaults.sampling_params()
    budget = 2 + (turns + 1) * sum(2 * (drafted + 1) for drafted in DRAFTED)
    budget = min(budget, room - len(prompt)) if contexts else budget
    config = decoder.configured(Planned(plan, predictor))
    requests = [
        decoder.new_request(prompt, sampling, budget, RandomSource(i), stop_tokens=frozenset(), config=config)
        for i in range(rows)
    ]
    scheduler = decoder.scheduler
    scheduler.submit(requests)
    seconds: dict[int, list[float]] = {drafted: [] for drafted in DRAFTED}
    try:
        scheduler.step()  # the target reads the prompts
        for turn in range(turns + 1):
            for drafted in DRAFTED:
                plan[0] = drafted
                scheduler.step()
                started = time.perf_counter()
                scheduler.step()
                if turn:  # in the first turn the draft reads the prompts
                    seconds[drafted].append(time.perf_counter() - started)
    finally:
        scheduler.cancel(requests)
    return [median(found) for found in seconds.values()]
