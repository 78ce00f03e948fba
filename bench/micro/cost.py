"""``specpilot bench cost``: the cost model of a pair on this machine, measured in two ways.

*Bare forwards*: t_draft of one token, t_v(n) of 1 to 21 tokens, fitted as t_v(n) = a + b·n. *The loop*: seconds of
whole generations against their counters, as SpecDec++ does (Huang et al. 2024, eq. 2.1 and Table 2). The loop's costs
are the ones to decide by: a step of it also warps, samples, judges and keeps books, and a decision pays for all of it.

With chain drafts a generation verifies N_draft + N_target tokens, so the loop only tells t_draft + b and a + b apart. A
length controller needs no more than these two; b itself, which splits them, is that of the bare forwards.

What a trained controller's own judgement takes belongs to a draft step too, if it is to decide by these costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from statistics import median
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression

from ...controllers.length import MAX_DRAFT, AcceptancePredictor, Fixed, LengthController, Step
from ...controllers.length.cost_model import CostModel
from ...infer.decoder import SpeculativeDecoder
from ...infer.generation import Stats
from ...infer.models import LanguageModel
from ..throughput import Cost, fit_cost
from .forward import read_context, time_forward

READ = range(1, MAX_DRAFT + 2)  # what a verification may read: the last token and a draft
DRAFTED = (0, 1, 2, 4, 6, 8, 12, MAX_DRAFT)  # draft lengths of the generations that are timed
# And of those the line is fitted to: what drafting pays at. Where nothing is drafted the target's weights stay in the
# processor's caches, and long drafts weigh most in a fit though they are rarely right.
FITTED = (1, 2, 4, 6, 8)
WARM_UP = 3
CHECK_COST = CostModel(0.2, 1.0, 0.0)  # what trained controllers that are only timed go by


class Judging(Fixed):
    """A fixed length for which ``source`` judges every token, though nothing depends on it."""

    def __init__(self, k: int, source: AcceptancePredictor) -> None:
        super().__init__(k)
        self.source = source

    def observe(self, step: Step) -> bool:
        if step.index > self.source.lag:
            self.source.predict(step)
        return super().observe(step)


def bench_cost(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    *,
    repeats: int,
    sampling: dict[str, Any],
    judge: AcceptancePredictor | None = None,
    check: Mapping[str, LengthController] | None = None,
    on_progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Both measurements, and the cost model to decide by.

    Args:
        decoder: the pair.
        prompts: token ids of what is generated from.
        repeats: how often each generation, and ten times that how often each forward is timed; medians are taken.
        sampling: keywords of the decoder's ``generate``.
        judge: what judges every drafted token meanwhile; a draft step of the loop takes that much longer.
        check: controllers timed beside the fixed lengths, whose times the model has to foretell without having seen.
        on_progress: called after every generation.

    Raises:
        InputError: the times make no sense: a step of the draft came out as negative.
    """
    (draft,) = decoder.drafts
    forward, r_squared, t_verify = forward_cost(decoder.target, draft, 10 * repeats)
    fixed = {str(k): Fixed(k) if judge is None else Judging(k, judge) for k in DRAFTED}
    controllers = fixed | dict(check or {})
    runs = loop_runs(decoder, prompts, repeats, sampling, controllers, on_progress)
    loop = fit_cost([run for k in FITTED for run in runs[str(k)]])
    return {
        "cost": as_cost_model(loop, forward.t_verify_token).as_dict(),
        "forward": {
            **forward.as_dict(),
            "r_squared": r_squared,
            "t_v": {str(n): seconds for n, seconds in t_verify.items()},
        },
        "loop": {**asdict(loop), "measured_over_fitted": {name: _misfit(loop, r) for name, r in runs.items()}},
    }


def total_generations(prompts: int, repeats: int, checked: int = 0) -> int:
    """How often :func:`bench_cost` calls ``on_progress``."""
    return (len(DRAFTED) + checked) * prompts * repeats


def as_cost_model(loop: Cost, t_verify_token: float) -> CostModel:
    """What the loop's two costs are when verifying a token more costs ``t_verify_token`` of them."""
    return CostModel(loop.t_draft - t_verify_token, loop.t_target - t_verify_token, t_verify_token)


def forward_cost(
    target: LanguageModel, draft: LanguageModel, repeats: int
) -> tuple[CostModel, float, dict[int, float]]:
    """Cost model of bare forwards, the R² of its line, and the medians t_v(n) it was drawn through."""
    t_draft: list[float] = []
    t_verify: dict[int, list[float]] = {n: [] for n in READ}
    readers = [read_context(model, max(READ)) for model in (target, draft)]
    for _ in range(WARM_UP + repeats):
        t_draft.append(time_forward(readers[1], 1))
        for n, seconds in t_verify.items():
            seconds.append(time_forward(readers[0], n))
    medians = {n: median(seconds[WARM_UP:]) for n, seconds in t_verify.items()}
    a, b, r_squared = fit_line(medians)
    return CostModel(median(t_draft[WARM_UP:]), a, b), r_squared, medians


def fit_line(points: dict[int, float]) -> tuple[float, float, float]:
    """a, b and R² of y = a + b·x by least squares, with b ≥ 0: reading more never takes less time, however noisy."""
    x, y = np.array([*points], dtype=float)[:, None], np.array([*points.values()])
    fit = LinearRegression(positive=True).fit(x, y)
    return float(fit.intercept_), float(fit.coef_[0]), float(fit.score(x, y))


def loop_runs(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    repeats: int,
    sampling: dict[str, Any],
    controllers: Mapping[str, LengthController],
    on_progress: Callable[[], None] = lambda: None,
) -> dict[str, list[Stats]]:
    """By controller, the counters of a generation for each prompt, with the median of its times over the repeats.

    The controllers take turns, prompt by prompt: all meet the same machine.
    """
    seconds: dict[tuple[str, int], list[float]] = {}
    counters: dict[tuple[str, int], Stats] = {}
    decoder.generate(prompts[0], length=Fixed(max(DRAFTED)), **sampling)  # warm-up
    for _ in range(repeats):
        for index, prompt in enumerate(prompts):
            for name, controller in controllers.items():
                stats = decoder.generate(prompt, seed=index, length=controller, **sampling).stats
                counters[name, index] = stats  # the same at every repeat
                seconds.setdefault((name, index), []).append(stats.seconds)
                on_progress()
    return {
        name: [replace(counters[name, index], seconds=median(seconds[name, index])) for index in range(len(prompts))]
        for name in controllers
    }


def _misfit(cost: Cost, runs: list[Stats]) -> float:
    """Measured seconds of ``runs`` over those that ``cost`` gives them."""
    total = sum(runs, Stats())
    fitted = cost.t_draft * total.n_draft_forwards + cost.t_target * (total.n_target_forwards - len(runs))
    return total.seconds / fitted
