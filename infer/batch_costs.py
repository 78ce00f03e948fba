"""Measures what rounds cost that several requests share (:mod:`~specpilot.controllers.length.batch_costs`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from ..controllers.errors import InputError
from ..controllers.length import Fixed
from ..controllers.length.batch_costs import BatchCosts
from ..controllers.length.cost_model import CostModel
from .decoder import SpeculativeDecoder
from .random_source import RandomSource

ROWS = (1, 2, 4, 8, 16, 32, 64)
DRAFTED = (0, 2, 4)  # tokens a draft; a line through their times gives the two costs
WARM = 2


def batch_costs(
    decoder: SpeculativeDecoder,
    rows: Sequence[int] = ROWS,
    *,
    rounds: int = 8,
) -> BatchCosts:
    """Time rounds of ``rows`` requests that draft 0, 2 and 4 tokens each; medians over ``rounds`` are fitted by a line.

    Args:
        decoder: nothing else may use it meanwhile.

    Raises:
        InputError: more requests than the decoder runs together.
    """
    most = decoder.scheduler.max_running
    if max(rows) > most:
        raise InputError(f"batch={max(rows)}: the decoder runs at most {most} requests together; give fewer")
    costs = []
    for count in rows:
        times = [_round_seconds(decoder, count, drafted, rounds) for drafted in DRAFTED]
        per_token, fixed = _line(times)
        costs.append(CostModel(per_token / count, fixed / count, 0.0))
    return BatchCosts(tuple(rows), tuple(costs))


def _line(times: list[float]) -> tuple[float, float]:
    """Slope and intercept of the line of least squares through the times of ``DRAFTED``, neither of them negative."""
    mean_k, mean_t = sum(DRAFTED) / len(DRAFTED), sum(times) / len(times)
    covariance = sum((k - mean_k) * (t - mean_t) for k, t in zip(DRAFTED, times, strict=True))
    slope = max(0.0, covariance / sum((k - mean_k) ** 2 for k in DRAFTED))
    return slope, max(mean_t - slope * mean_k, 0.1 * times[0])


def _round_seconds(decoder: SpeculativeDecoder, rows: int, drafted: int, rounds: int) -> float:
    """The median time of a round of ``rows`` requests that all draft ``drafted`` tokens."""
    sampling = decoder.defaults.sampling_params()
    budget = (rounds + WARM + 2) * (drafted + 1)
    config = decoder.configured(Fixed(drafted))
    requests = [
        decoder.new_request([0] * 8, sampling, budget, RandomSource(i), stop_tokens=frozenset(), config=config)
        for i in range(rows)
    ]
    scheduler = decoder.scheduler
    scheduler.submit(requests)
    seconds = []
    try:
        for _ in range(rounds + WARM + 1):
            started = time.perf_counter()
            scheduler.step()
            seconds.append(time.perf_counter() - started)
    finally:
        scheduler.cancel(requests)
    return median(seconds[WARM + 1 :])  # the first one reads the prompts
