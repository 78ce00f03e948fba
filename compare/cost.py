"""``specpilot bench cost``: the cost model of a pair on this machine, measured in two ways.

*Steps* (:mod:`..infer.costs`): t_draft of one token, t_v(n) of 1 to 21 tokens. *The loop*: seconds of whole generations
against their counters, as SpecDec++ does (Huang et al. 2024, eq. 2.1 and Table 2). Decisions go by the loop's costs: a
step of the loop also evaluates the controller and updates the request's state.

With chain drafts a generation verifies N_draft + N_target tokens, so the loop determines two sums only, t_draft + b and
a + b. A length controller needs no more than these; b, which splits them, is that of the single steps. Generations
without drafts give a + b of such rounds; what rounds with drafts take beyond it is ``t_draft_start``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from torch import Tensor

from ..common.errors import InputError
from ..controllers.length import MAX_DRAFT, Fixed, LengthController, Step, names_rule
from ..controllers.length.cost_model import CostModel
from ..infer.core import Generation, Stats
from ..infer.costs import step_times
from ..infer.decoder import SpeculativeDecoder
from .runner import decode_all

READ = range(1, MAX_DRAFT + 2)  # what a verification may read: the last token and a draft
DRAFTED = (0, 1, 2, 4, 6, 8, 12, MAX_DRAFT)  # draft lengths of the generations that are timed
# And of those the line is fitted to: what drafting pays at. Rounds without drafts are off the line, and long drafts
# weigh most in a fit though they are rarely accepted whole.
FITTED = (1, 2, 4, 6, 8)
PREDICTED = 4  # tokens a draft while the time of a prediction is measured
QUICKLY_READ, QUICKLY_DRAFTED = (1, 2, 3, 5, 9), (0, 1, 2, 4, 8)


def trained_judge(decoder: SpeculativeDecoder, name: str) -> LengthController:
    """The trained controller ``name``.

    Raises:
        InputError: ``name`` is a rule, or no controller of this pair.
    """
    if names_rule(name):
        raise InputError(f"judge={name!r}: a rule predicts nothing; name a trained controller")
    return decoder.load_length(name, cost=CostModel(0.2, 1.0, 0.0))


class JudgedFixed(Fixed):
    """``PREDICTED`` tokens, at which ``judge`` decides as well, and is ignored.

    Attributes:
        starts, seconds: what it took at each round's start and at each token; copies for requests share the lists.
    """

    def __init__(self, judge: LengthController) -> None:
        super().__init__(PREDICTED)
        self.judge, self.reads_target = judge, judge.reads_target
        self.starts: list[float] = []
        self.seconds: list[float] = []

    def start_text(self) -> None:
        self.judge.start_text()

    def see(self, state: Tensor) -> None:
        self.judge.see(state)

    def start_round(self) -> bool:
        started = time.perf_counter()
        self.judge.start_round()
        self.starts.append(time.perf_counter() - started)
        return True

    def observe(self, step: Step) -> bool:
        started = time.perf_counter()
        self.judge.observe(step)
        self.seconds.append(time.perf_counter() - started)
        return super().observe(step)


def bench_cost(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    console: Console,
    *,
    repeats: int,
    sampling: dict[str, Any],
    judge: LengthController | None = None,
    quick: bool = False,
) -> dict[str, Any]:
    """Both measurements, and the cost model to decide by; that of the steps is ``forward`` in the result.

    Costs that noise made negative are clamped, which ``warnings`` reports.

    Args:
        decoder: the pair.
        prompts: token ids of what is generated from.
        repeats: how often each generation, and ten times that how often each step is timed; medians are taken.
        sampling: keywords of the decoder's ``generate``.
        judge: a trained controller, whose decisions' time is added; ``prediction`` is that.
        quick: with fewer lengths, in a third of the time.

    Raises:
        InputError: no generation is longer than the token of its prefill.
    """
    (draft,) = decoder.drafts
    read = QUICKLY_READ if quick else READ
    drawn = {name: value for name, value in sampling.items() if name != "max_new_tokens"}
    steps = step_times(
        decoder.target, [draft], prompts[0], decoder.defaults.sampling_params(**drawn), 10 * repeats, read
    )
    bare = steps.cost
    decoders: dict[str, Callable[..., Generation]] = {
        str(k): partial(decoder.generate, length=Fixed(k)) for k in (QUICKLY_DRAFTED if quick else DRAFTED)
    }
    if decoder.target.device.type == "cpu" and torch.get_num_threads() == 1:
        decoders = {name: in_processor_time(generate) for name, generate in decoders.items()}
    runs = decode_all(decoders, prompts, sampling, console, repeats=repeats)
    loop, loop_r_squared = fit_loop([run for k in FITTED for run in runs.get(str(k), [])])
    pair = split_sums(loop, bare.t_verify_token, without_drafts(loop, runs["0"]))
    cost, prediction = pair, {}
    if judge is not None:
        taken = decision_seconds(decoder, prompts, judge, sampling)
        cost = with_decisions(pair, taken)
        prediction = {"prediction": {
            "median_call": taken[0], "at_a_start": taken[1], "draft_step": loop.per_token,
            "share_of_draft_step": taken[0] / loop.per_token if loop.per_token else math.inf,
        }}  # fmt: skip
    return {
        "cost": cost.as_dict(),
        "forward": {
            **bare.as_dict(),
            "r_squared": float(r2_score([*steps.verify.values()], [bare.round(n - 1, 0) for n in steps.verify])),
            "t_v": {str(n): seconds for n, seconds in steps.verify.items()},
        },
        "loop": {
            "t_draft": loop.per_token,
            "t_target": loop.verification(1),
            "r_squared": loop_r_squared,
            "measured_over_fitted": {name: _misfit(pair, of_name) for name, of_name in runs.items()},
        },
        **prediction,
        "warnings": warnings(loop, bare.t_verify_token),
    }


def in_processor_time(generate: Callable[..., Generation]) -> Callable[..., Generation]:
    """``generate`` with its times in processor seconds: of one thread, what they would be on an idle machine."""

    def timed(*arguments: Any, **keywords: Any) -> Generation:
        wall, processor = time.perf_counter(), time.process_time()
        generation = generate(*arguments, **keywords)
        share = (time.process_time() - processor) / (time.perf_counter() - wall)
        generation.stats.seconds *= share
        generation.stats.prefill_seconds *= share
        return generation

    return timed


def decision_seconds(
    decoder: SpeculativeDecoder, prompts: list[list[int]], judge: LengthController, sampling: dict[str, Any]
) -> list[float]:
    """The median times of ``judge`` at a token and at a round's start while decoding; 0 where it was not asked."""
    length = JudgedFixed(judge)
    for prompt in prompts:
        decoder.generate(prompt, length=length, seed=0, **sampling)
    return [median(times) if times else 0.0 for times in (length.seconds, length.starts)]


def with_decisions(cost: CostModel, seconds: Sequence[float]) -> CostModel:
    """``cost`` with the time of a controller's decisions, of :func:`decision_seconds`."""
    token, start = seconds
    return replace(cost, t_draft=cost.t_draft + token, t_draft_start=cost.t_draft_start + start)


def fit_loop(runs: list[Stats]) -> tuple[CostModel, float]:
    """Non-negative least squares of seconds on counters over whole generations; prefills are left out.

    Returns:
        the two sums as a cost model with ``t_verify_token`` 0, and R².

    Raises:
        InputError: no generation is longer than the token of its prefill.
    """
    # (n, 2) and (n,)
    forwards = np.array([[run.n_draft_forwards, run.n_target_forwards - 1] for run in runs], dtype=float)
    seconds = np.array([run.seconds for run in runs])
    if not forwards[:, 1].any():
        raise InputError(
            "prompts: every generation ended with its first token; take others or more max_new_tokens to measure costs"
        )
    fit = LinearRegression(fit_intercept=False, positive=True).fit(forwards, seconds)
    t_draft, t_target = map(float, fit.coef_)
    if t_target == 0:  # noise only: all time is then the target's
        t_draft, t_target = 0.0, float(seconds.sum() / forwards[:, 1].sum())
    return CostModel(t_draft, t_target, 0.0), float(fit.score(forwards, seconds))


def without_drafts(loop: CostModel, runs: list[Stats]) -> float:
    """Seconds of a round of ``runs``, which draft nothing; that of ``loop`` if each of them is a prefill alone."""
    rounds = sum(run.n_target_forwards - 1 for run in runs)
    return sum(run.seconds for run in runs) / rounds if rounds else loop.verification(1)


def split_sums(loop: CostModel, t_verify_token: float, alone: float) -> CostModel:
    """The loop's costs with the cost of a verified token taken out of both sums, which stay as they are.

    Args:
        alone: seconds of a round without a draft; what ``loop`` has for one beyond that is ``t_draft_start``.
    """
    with_draft = loop.verification(1)
    alone = min(alone, with_draft)
    per_token = min(t_verify_token, loop.per_token, alone)
    return CostModel(loop.per_token - per_token, alone - per_token, per_token, with_draft - alone)


def warnings(loop: CostModel, t_verify_token: float) -> list[str]:
    """What was clamped, and what that means."""
    found = []
    if loop.per_token == 0:
        found.append("loop: a draft step came out as taking no time; measure again on an idle machine")
    if t_verify_token > min(loop.per_token, loop.verification(1)):
        found.append(
            f"cost: t_verify_token={t_verify_token:.3g} of single steps is more than a whole step of the loop, and is "
            "clamped to it; decisions do not depend on it"
        )
    return found


def _misfit(cost: CostModel, runs: list[Stats]) -> float | None:
    """Measured seconds of ``runs`` over those of the cost model; None where nothing was decoded after the prefills."""
    total = sum(runs, Stats())
    fitted = cost.seconds(total.n_draft_forwards, total.n_target_forwards - len(runs))
    return float(total.seconds / fitted) if fitted else None
