"""``specpilot bench cost``: the cost model of a pair on this machine, fitted to the rounds of the decoding loop.

Prompts are decoded without drafts and with drafts of several lengths, and the costs are fitted to the rounds' times
(:func:`~specpilot.controllers.length.running_cost.fit_rounds`), as SpecDec++ does with whole generations (Huang et al.
2024, eq. 2.1 and Table 2). A round of the loop includes what single forwards leave out: the controller and the update
of the request's state.

A chain of K drafted tokens verifies K + 1 tokens, so the times of these rounds do not separate t_draft from
t_verify_token. A length controller needs only the sum of both. The times of single forwards of the target over 1 to 21
tokens (:mod:`..infer.costs`) separate them. If these times are not linear in the number of tokens, the cost model has
their shape
(:mod:`~specpilot.controllers.length.verification_shape`). The times of rounds then determine all costs except the
additional time of a verification.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from rich.console import Console
from sklearn.metrics import r2_score
from torch import Tensor

from ..common.errors import InputError, passed_as
from ..common.record import Record, SparseRecord
from ..controllers.length import MAX_DRAFT, Fixed, LengthController, Step, names_rule
from ..controllers.length.cost_model import CostModel
from ..controllers.length.running_cost import fit_rounds
from ..infer.costs import step_times
from ..infer.decoder import SpeculativeDecoder
from ..infer.options import SamplingKeywords
from .runner import decode_all

READ = range(1, MAX_DRAFT + 2)  # numbers of tokens that a verification may read: the last token and a draft
DRAFTED = (0, 1, 2, 4, 6, 8, 12, MAX_DRAFT)  # draft lengths of the generations that are timed
# Draft lengths to which the line is fitted: lengths at which drafting pays. Rounds without drafts are off the line, and
# long drafts have a large weight in a fit though they are rarely accepted whole.
FITTED = (1, 2, 4, 6, 8)
PREDICTED = 4  # tokens of a draft while the time of a prediction is measured
QUICKLY_READ, QUICKLY_DRAFTED = (1, 2, 3, 5, 7, 9, 13), (0, 1, 2, 4, 8)


def trained_judge(decoder: SpeculativeDecoder, name: str) -> LengthController:
    """Return the trained controller ``name``.

    Raises:
        InputError: ``name`` is a rule, there is no such controller, or it was trained for another pair.
    """
    if names_rule(name):
        raise InputError(f"judge={name!r}: is a rule, which predicts nothing; name a trained controller")
    with passed_as("length", "judge"):
        return decoder.load_length(name, cost=CostModel(0.2, 1.0, 0.0))


class TimedFixed(Fixed):
    """A length controller that drafts a fixed number of tokens and records the times of rounds.

    Attributes:
        rounds: tokens and forwards of each round's draft, and its seconds; copies for requests share the list.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.rounds: list[tuple[int, int, float]] = []

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:
        self.rounds.append((tokens, forwards, seconds))


class JudgedFixed(Fixed):
    """A length controller that drafts ``PREDICTED`` tokens and records the times of ``judge``, but ignores it.

    Attributes:
        starts, seconds: seconds of the decisions of ``judge`` at the start of each round and at each token; copies for
            requests share the lists.
    """

    def __init__(self, judge: LengthController) -> None:
        super().__init__(PREDICTED)
        self.judge, self.reads_target = judge, judge.reads_target
        self.starts: list[float] = []
        self.seconds: list[float] = []

    def start_text(self) -> None:
        self.judge.start_text()

    def read_target(self, state: Tensor) -> None:
        self.judge.read_target(state)

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


@dataclass(frozen=True)
class StepCosts(Record):
    """The cost model of single steps.

    Attributes:
        cost: the cost model; in JSON its fields stand beside ``r_squared`` and ``t_v``.
        r_squared: share of the variance of ``t_v`` that the cost model explains.
        t_v: seconds of the target's forward by number of tokens.
    """

    cost: CostModel
    r_squared: float
    t_v: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {**self.cost.to_dict(), "r_squared": self.r_squared, "t_v": self.t_v}


@dataclass(frozen=True)
class RoundCosts(Record):
    """The cost model of the rounds of the decoder.

    Attributes:
        t_draft: seconds of a drafted token, with its share of the verification.
        t_target: seconds of a round without a draft.
        r_squared: share of the variance of the rounds' times that the cost model explains.
        measured_over_fitted: total measured seconds over total fitted seconds, by draft length; None for a length of
            which no round was measured.
    """

    t_draft: float
    t_target: float
    r_squared: float
    measured_over_fitted: dict[str, float | None]


@dataclass(frozen=True)
class DecisionTimes(Record):
    """Seconds of a trained controller's decisions.

    Attributes:
        median_call: median seconds of the decision at a drafted token.
        at_a_start: median seconds of the decision at the start of a round.
        draft_step: seconds of a draft step without a decision.
        share_of_draft_step: ``median_call`` over ``draft_step``.
    """

    median_call: float
    at_a_start: float
    draft_step: float
    share_of_draft_step: float


@dataclass(frozen=True, kw_only=True)
class CostMeasurement(SparseRecord):
    """The measured costs of a pair.

    Attributes:
        cost: the cost model that decoding uses: of the rounds, with a controller's decisions.
        forward: the cost model of single steps.
        loop: the cost model of the rounds.
        prediction: the time of a controller's decisions; None without a controller.
        warnings: a message for each cost that noise made impossible, so that another value replaced it.
    """

    cost: CostModel
    forward: StepCosts
    loop: RoundCosts
    prediction: DecisionTimes | None = None
    warnings: list[str]


def bench_cost(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    console: Console,
    *,
    repeats: int,
    sampling: SamplingKeywords,
    judge: LengthController | None = None,
    quick: bool = False,
) -> CostMeasurement:
    """Return the measured costs of a pair, in seconds: of its rounds and of single steps.

    Costs that noise made negative are set to 0. ``warnings`` of the result has a message for each of them.

    Args:
        decoder: the pair.
        prompts: token ids of the prompts.
        console: the console that shows the progress.
        repeats: number of times that each generation is timed. Single steps are timed ten times as often. The results
            are medians.
        sampling: keywords of the decoder's ``generate``.
        judge: a trained controller, whose decisions' time is added to ``cost``.
        quick: whether fewer draft lengths are measured, which takes a third of the time.

    Raises:
        InputError: every text ends with its first token, so that there are no rounds.
    """
    (draft,) = decoder.drafts
    read = QUICKLY_READ if quick else READ
    drawn = {name: value for name, value in sampling.items() if name != "max_new_tokens"}
    steps = step_times(
        decoder.target, [draft], prompts[0], decoder.defaults.sampling_params(**drawn), 10 * repeats, read
    )
    bare = steps.cost
    recorders = {k: TimedFixed(k) for k in (QUICKLY_DRAFTED if quick else DRAFTED)}
    decoders = {str(k): partial(decoder.generate, length=recorder) for k, recorder in recorders.items()}
    decode_all(decoders, prompts, sampling, console, repeats=repeats)
    rounds = [round for k in (0, *FITTED) if k in recorders for round in recorders[k].rounds]
    if not any(tokens == 0 for tokens, *_ in rounds):
        raise InputError(
            "prompts: every text ended with its first token, so there are no rounds to time; choose other prompts or a "
            "larger --max-new-tokens"
        )
    loop = fit_rounds(rounds)
    pair = with_shape(rounds, bare) if bare.verify_shape else split_sums(loop, bare.t_verify_token)
    cost, prediction = pair, None
    if judge is not None:
        token, start = seconds = decision_seconds(decoder, prompts, judge, sampling)
        cost = with_decisions(pair, seconds)
        share = token / loop.per_token if loop.per_token else math.inf
        prediction = DecisionTimes(token, start, loop.per_token, share)
    return CostMeasurement(
        cost=cost,
        forward=StepCosts(
            bare,
            float(r2_score([*steps.verify.values()], [bare.round(n - 1, 0) for n in steps.verify])),
            {str(n): seconds for n, seconds in steps.verify.items()},
        ),
        loop=RoundCosts(
            loop.per_token,
            loop.round(0),
            float(r2_score([t for *_, t in rounds], [loop.round(n, m) for n, m, _ in rounds])),
            {str(k): _misfit(pair, recorder.rounds) for k, recorder in recorders.items()},
        ),
        prediction=prediction,
        warnings=warnings(loop, 0.0 if bare.verify_shape else bare.t_verify_token),
    )


def decision_seconds(
    decoder: SpeculativeDecoder, prompts: list[list[int]], judge: LengthController, sampling: SamplingKeywords
) -> list[float]:
    """Return the median seconds of the decisions of ``judge`` at a drafted token and at the start of a round.

    The prompts are decoded with drafts of ``PREDICTED`` tokens. A median is 0 if there was no such decision.
    """
    length = JudgedFixed(judge)
    for prompt in prompts:
        decoder.generate(prompt, length=length, seed=0, **sampling)
    return [median(times) if times else 0.0 for times in (length.seconds, length.starts)]


def with_decisions(cost: CostModel, seconds: Sequence[float]) -> CostModel:
    """Return ``cost`` with the times of a controller's decisions, from :func:`decision_seconds`."""
    token, start = seconds
    return replace(cost, t_draft=cost.t_draft + token, t_draft_start=cost.t_draft_start + start)


def with_shape(rounds: Sequence[tuple[int, int, float]], forward: CostModel) -> CostModel:
    """Return the cost model of ``rounds``, with the times of single forwards for further tokens of a verification.

    Args:
        rounds: tokens and forwards of each round's draft, and its seconds.
        forward: the cost model of single forwards, with a shape.
    """
    rest = fit_rounds((n, m, max(seconds - forward.added(0, n), 0.0)) for n, m, seconds in rounds)
    per_token = min(forward.t_verify_token, rest.round(0))
    return CostModel(rest.per_token, rest.round(0) - per_token, per_token, rest.t_draft_start, forward.verify_shape)


def split_sums(loop: CostModel, t_verify_token: float) -> CostModel:
    """Return ``loop`` with another cost of a verified token.

    The costs of a round and of a drafted token do not change. If ``t_verify_token`` (seconds) exceeds one of them, the
    smaller of the two replaces it.
    """
    per_token = min(t_verify_token, loop.per_token, loop.round(0))
    return CostModel(loop.per_token - per_token, loop.round(0) - per_token, per_token, loop.t_draft_start)


def warnings(loop: CostModel, t_verify_token: float) -> list[str]:
    """Return a warning for each cost that noise made impossible, so that another value replaced it."""
    messages = []
    if loop.per_token == 0:
        messages.append("loop: the measured time of a draft step is zero; measure again on an idle machine")
    if t_verify_token > min(loop.per_token, loop.round(0)):
        messages.append(
            f"cost: t_verify_token={t_verify_token:.3g} s of single steps exceeds a whole step of the loop and was "
            "reduced to it; decisions do not depend on it"
        )
    return messages


def _misfit(cost: CostModel, rounds: Sequence[tuple[int, int, float]]) -> float | None:
    """Return the seconds of ``rounds`` over those of the cost model; None without rounds."""
    fitted = sum(cost.round(tokens, forwards) for tokens, forwards, _ in rounds)
    return sum(seconds for *_, seconds in rounds) / fitted if fitted else None
