"""The cost model: by number of requests, measured, and learned while decoding, with a clock that tests move."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.common.json_file import build
from specpilot.compare.cost import bench_cost, split_sums, warnings
from specpilot.controllers.length import MAX_DRAFT, Fixed, OnlineConfidence, RateOptimal, Step
from specpilot.controllers.length.cost_based import TrainedLength
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.controllers.length.online_confidence_tree import OnlineConfidenceTree
from specpilot.controllers.length.rate import steady_rate
from specpilot.controllers.length.running_cost import RunningCost, fit_rounds
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import Stats
from specpilot.infer.costs import StepTimes, fastest_step, pair_costs, step_times
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.hooks import RoundTimer
from specpilot.models import CausalLM, language_model
from specpilot.models.loading.names import load_model

from ..helpers.clock import time_forwards, timed_pair
from ..helpers.steps import TablePredictor, step

QUIET = Console(quiet=True)
PROMPTS = [[1, 2, 3], [4, 5]]


TIMES = (0.010, 0.001), 0.002  # t_v(n) = 10 + n ms, t_draft = 2 ms
ASSUMED_RATIOS = 0.2, 0.05  # of t_draft and t_verify_token to a round without a draft, where nothing was measured
TIME_SHARE = 0.004  # maximum share of the time for extra rounds, see docs/concepts/adaptive-costs.md


def test_throughput_is_equation_2_3() -> None:
    cost = CostModel(t_draft=0.0234, t_verify=0.112, t_verify_token=0.0)  # the paper's machine, §4.2
    stats = Stats(n_generated=100, n_target_forwards=30, n_drafted=90, n_accepted=70, n_discarded=20)
    by_rates = 1 / (0.0234 + 0.0234 * stats.discard_rate + (0.112 - 0.0234) * stats.verification_rate)
    assert cost.throughput(100, 90, 30) == pytest.approx(by_rates)
    split = CostModel(t_draft=0.0134, t_verify=0.102, t_verify_token=0.01)  # another split of the same sums
    assert split.throughput(100, 90, 30) == pytest.approx(by_rates)


def test_known_costs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _, *pair = timed_pair(monkeypatch, *TIMES)
    result = bench_cost(SpeculativeDecoder(*pair), PROMPTS, QUIET, repeats=2, sampling={"max_new_tokens": 30})
    assert result.warnings == []
    true_costs = {"t_draft": 0.002, "t_verify": 0.010, "t_verify_token": 0.001}
    assert result.cost.to_dict() == pytest.approx(true_costs | {"t_draft_start": 0.0}, abs=1e-7)
    assert {name: result.to_dict()["forward"][name] for name in true_costs} == pytest.approx(true_costs)
    assert result.forward.t_v == pytest.approx({str(n): 0.010 + 0.001 * n for n in range(1, 22)})
    assert [part.r_squared for part in (result.forward, result.loop)] == pytest.approx([1.0, 1.0])
    measured_over_fitted = result.loop.measured_over_fitted
    assert {"0", "1", str(MAX_DRAFT)} <= measured_over_fitted.keys()
    assert [*measured_over_fitted.values()] == pytest.approx([1.0] * len(measured_over_fitted))
    # The target's first forward after the draft's takes longer; a text's last round may have no room for a draft.
    _, *pair = timed_pair(monkeypatch, *TIMES, start=0.003)
    result = bench_cost(
        SpeculativeDecoder(*pair), PROMPTS, QUIET, repeats=1, sampling={"max_new_tokens": 30}, quick=True
    )
    assert result.cost.t_draft_start == pytest.approx(0.003, rel=0.05)
    assert result.cost.round(0) == pytest.approx(0.011)


@pytest.mark.parametrize("quick", [False, True])
def test_steps_of_verifications_are_measured(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to five tokens take the time of one; more tokens take longer in steps of four."""
    target, draft = language_model(load_model("tiny")), language_model(load_model("tiny-draft"))

    def verification(tokens: int) -> float:
        return 0.010 + (0.006 * ((tokens - 6) // 4 + 1) if tokens > 5 else 0.0)

    def takes(model: CausalLM, tokens: int) -> float:
        return 0.002 if model is draft else verification(tokens)

    time_forwards(monkeypatch, takes)
    result = bench_cost(
        SpeculativeDecoder(target, draft), PROMPTS, QUIET, repeats=1, sampling={"max_new_tokens": 60}, quick=quick
    )
    assert result.warnings == []
    lengths = (0, 2, 4, 8) if quick else (0, 1, 2, 4, 5, 8, 9, 12)
    expected = [0.002 * k + verification(k + 1) for k in lengths]
    assert [result.cost.round(k) for k in lengths] == pytest.approx(expected, rel=0.05)
    assert result.cost.added(4, 2) > 0.5 * 0.006  # the step between five and seven tokens
    again = build(CostModel, json.loads(json.dumps(result.to_dict()))["cost"], "cost")
    assert again == result.cost


def test_the_predictors_time_belongs_to_a_draft_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, *pair = timed_pair(monkeypatch, *TIMES)

    class Slow(TablePredictor):
        def predict(self, step: Step) -> float:
            clock.now += 0.001
            return super().predict(step)

    predictor, cost = Slow(0.6, mean=0.5), CostModel(0.2, 1.0, 0.0)
    result = bench_cost(
        SpeculativeDecoder(*pair), PROMPTS, QUIET, repeats=1, sampling={"max_new_tokens": 60},
        judge=RateOptimal(predictor, cost), quick=True,
    )  # fmt: skip
    assert result.cost.t_draft == pytest.approx(0.003)
    assert result.prediction.share_of_draft_step == pytest.approx(0.001 / 0.003)


def test_costs_without_a_share_are_reported() -> None:
    free = CostModel(0.0, 1.0, 0.0)
    (warning,) = warnings(free, 0.0)
    assert "the measured time of a draft step is zero; measure again" in warning


def test_no_generation_is_longer_than_its_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    _, *pair = timed_pair(monkeypatch, *TIMES)
    with pytest.raises(InputError, match="every text ended with its first token"):
        bench_cost(SpeculativeDecoder(*pair), PROMPTS, QUIET, repeats=1, sampling={"max_new_tokens": 1})


@pytest.mark.parametrize("per_token", [0.0, 0.4, 1.0, 2.0, 9.0])
def test_the_sums_are_kept_whatever_a_verified_token_costs(per_token: float) -> None:
    loop = CostModel(0.8, 4.0, 0.2, 0.5)
    cost = split_sums(loop, per_token)
    assert [cost.round(k) for k in (0, 1, 2, 9)] == pytest.approx([loop.round(k) for k in (0, 1, 2, 9)])
    assert cost.t_verify_token == min(per_token, 1.0)
    assert len(warnings(loop, per_token)) == (per_token > 1)


# What the quick measurement of a pair reads


def test_the_quick_measurement_takes_turns_as_decoding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target reads one token after its own step, and several tokens after a draft step.

    Drafts follow the target.
    """
    target, *drafts = (language_model(load_model(name)) for name in ("tiny", *["tiny-draft"] * 2))
    last = [target]

    def takes(model: CausalLM, tokens: int) -> float:
        last.append(model)
        if model is target:
            return 0.010 + 0.001 * tokens + 0.003 * (last[-2] is not target)
        return 0.002 + 0.1 * (last[-2] not in (model, target))

    time_forwards(monkeypatch, takes)
    times = step_times(target, [*drafts, None], [5, 6, 7, 8], SamplingParams(), repeats=2)
    assert times.cost.to_dict() == pytest.approx(CostModel(0.002, 0.010, 0.001, 0.003).to_dict())
    assert times.models == pytest.approx([0.002, 0.002, 0.011])


@pytest.mark.parametrize("seconds", [0.001, 0.03, 0.1, 0.2, 0.25, 0.3, 0.9, 3.0])
def test_a_pair_is_measured_in_a_second_at_most(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement takes longer only if one forward of each model does."""
    target, draft = language_model(load_model("tiny")), language_model(load_model("tiny-draft"))
    forwards: list[CausalLM] = []

    def takes(model: CausalLM, tokens: int) -> float:
        forwards.append(model)
        return seconds * (1.0 if model is target else 0.1) * (1 + 0.05 * min(tokens, 9))

    clock = time_forwards(monkeypatch, takes)
    cost = pair_costs(target, draft)
    assert clock.now <= 1.0 or forwards == [target, draft]
    if seconds < 0.1:
        assert cost.verification(1) == pytest.approx(1.05 * seconds, rel=1e-3)
        assert cost.t_draft == pytest.approx(0.105 * seconds, rel=1e-3)
        assert cost.t_verify_token == pytest.approx(0.05 * seconds, rel=1e-3)
    if seconds >= 0.9:
        ratios = cost.t_draft / cost.verification(1), cost.t_verify_token / cost.verification(1)
        assert ratios == pytest.approx(ASSUMED_RATIOS)


@pytest.mark.parametrize("busy", [{2: 5.0}, {2: 3.0, 5: 9.0}, {1: 9.0}, {9: 0.1}, {}])
def test_a_busy_second_makes_no_draft_step_free(busy: dict[int, float]) -> None:
    """The time of a draft step is the measured one, even if the verifications of the same second were slow."""
    times = {1: 1.0, 2: 1.05, 5: 1.2, 9: 1.4} | busy
    assert StepTimes(times, [0.3], 0.3, 15, [[0.3] * 12]).cost.t_draft == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("step", "busy", "chosen"),
    [
        (0.95, lambda turn: turn % 2, "float32"),  # half of the turns show a difference that is not there
        (0.6, lambda turn: turn % 8 == 0, "int8"),
        (0.6, lambda turn: False, "int8"),
        (0.95, lambda turn: False, "float32"),
    ],
)
def test_a_busy_moment_does_not_choose_the_precision(
    step: float, busy: Callable[[int], bool], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes make steps of the exact draft nine times as slow in some turns."""
    target, exact, other = (language_model(load_model(name)) for name in ("tiny", *["tiny-draft"] * 2))
    forwards = 0

    def takes(model: CausalLM, tokens: int) -> float:
        nonlocal forwards
        if model is target:
            return 0.002
        forwards += model is exact
        return 0.001 * (step if model is other else 9.0 if busy((forwards - 2) // 8) else 1.0)  # one reads the prompt

    time_forwards(monkeypatch, takes)
    assert fastest_step(target, {"float32": exact, "int8": other}) == chosen


def test_a_measurement_on_a_busy_machine_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, *pair = timed_pair(monkeypatch, (0.010, 0.001), 0.00002)
    for load, words in ((999.0, "while other processes ran (load"), (0.0, "verification, measured")):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        with caplog.at_level("INFO", "specpilot"):
            pair_costs(*pair)
        assert "a draft step takes 0.0018 of" in caplog.messages[-1]
        assert words in caplog.messages[-1]
    assert "processes" not in caplog.messages[-1]


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        ({1: 8.0, 2: 18.0, 3: 24.0, 5: 36.0, 9: 60.0}, CostModel(0.5, 2.0, 6.0, 4.0)),  # other kernels from two tokens
        ({1: 20.0, 2: 21.0, 3: 22.0, 5: 24.0, 9: 28.0}, CostModel(0.5, 19.0, 1.0)),
        ({1: 20.0, 2: 24.1, 3: 24.0, 5: 24.0, 9: 23.9}, CostModel(0.5, 19.8, 0.2, 4.0)),  # noise: no token is free
    ],
)
def test_rounds_are_fitted(t: dict[int, float], expected: CostModel) -> None:
    rounds = [(n - 1, 0, seconds) for n, seconds in t.items()]
    rounds += [(n - 1, n - 1, seconds + 0.5 * (n - 1)) for n, seconds in t.items() if n > 1]
    assert fit_rounds(rounds).to_dict() == pytest.approx(expected.to_dict(), abs=0.005 * t[1], rel=0.01)


def test_times_that_no_line_goes_through() -> None:
    """The least-squares fit has no negative cost. Rounds without drafts have as much weight as all others."""
    cost = fit_rounds([(n - 1, 0, seconds) for n, seconds in {1: 20.0, 2: 20.0, 3: 20.0, 5: 20.0, 9: 34.0}.items()])
    assert cost.t_draft_start == 0.0
    assert cost.round(0) == pytest.approx(20.0, rel=0.1)
    assert cost.round(8, 0) == pytest.approx(34.0, rel=0.1)
    expensive = fit_rounds([(n - 1, 0, seconds) for n, seconds in {1: 2.0, 2: 8.0, 3: 14.0, 5: 26.0}.items()])
    # A further token is as expensive as a round.
    assert (expensive.t_verify, expensive.round(0)) == (0.0, pytest.approx(2.0, rel=0.05))


def test_chains_alone_determine_what_a_drafted_token_costs() -> None:
    truth = CostModel(0.4, 1.0, 0.1, 0.3)
    cost = fit_rounds([(k, k, truth.round(k)) for k in (0, 1, 2, 4)])
    lengths = (0, 1, 2, 4, 8)
    assert [cost.round(k) for k in lengths] == pytest.approx([truth.round(k) for k in lengths], rel=1e-3)
    unknown = fit_rounds([(0, 0, 5.0)])
    assert unknown.round(0) == pytest.approx(5.0)
    assert (unknown.t_draft / 5.0, unknown.t_verify_token / 5.0) == pytest.approx(ASSUMED_RATIOS)


# Costs by the number of requests


CHEAP, EXPENSIVE = CostModel(0.05, 1.0, 0.0), CostModel(2.0, 1.0, 0.0)
seconds = st.floats(1e-6, 10.0)
models = st.builds(CostModel, seconds, seconds, seconds)


@given(low=models, high=models, rows=st.integers(1, 200))
def test_between_the_rows_that_were_measured(low: CostModel, high: CostModel, rows: int) -> None:
    costs = BatchCosts((2, 64), (low, high))
    interpolated = costs.at(rows)
    if rows <= 2:
        assert interpolated == low
    elif rows >= 64:
        assert interpolated == high
    else:  # the time of a whole round lies on the line between those of 2 and 64 requests
        line = {
            name: 2 * cost + (rows - 2) / 62 * (64 * high.to_dict()[name] - 2 * cost)
            for name, cost in low.to_dict().items()
        }
        if high.t_draft >= high.t_verify:  # drafts do not pay with 64 requests, and so not here
            line |= {"t_draft": line["t_verify"], "t_verify_token": 0.0}
        assert {name: rows * cost for name, cost in interpolated.to_dict().items()} == pytest.approx(line)


def test_cost_files(tmp_path: Path) -> None:
    costs = BatchCosts((1, 8), (CHEAP, EXPENSIVE))
    file = tmp_path / "cost.json"
    file.write_text(json.dumps({"cost": CHEAP.to_dict(), "batch": costs.to_dict()}))
    assert BatchCosts.load(file) == costs
    file.write_text(json.dumps({"cost": CHEAP.to_dict()}))
    assert BatchCosts.load(file) is None
    negative = CHEAP.to_dict() | {"t_draft": -1}
    for wrong in (*({rows: CHEAP.to_dict()} for rows in ("one", "²", "9" * 5000)), {"1": negative}, [], {}):
        file.write_text(json.dumps({"batch": wrong}))
        with pytest.raises(InputError, match=r"cost\.json.*measure again"):
            BatchCosts.load(file)


@pytest.mark.parametrize("kind", [RateOptimal, OnlineConfidence])
@pytest.mark.parametrize("expensive", [EXPENSIVE, CostModel(0.7, 0.7, 0.0)])
def test_a_full_batch_drafts_nothing_and_an_empty_one_does_again(expensive: CostModel, kind: type) -> None:
    """If a drafted token costs as much as a round, not even a certain token pays, and there are no probes."""
    cost_options: dict[str, Any] = {"cost": CHEAP, "batch": BatchCosts((1, 64), (CHEAP, expensive))}
    rule = (
        RateOptimal(TablePredictor(0.99, mean=0.99), **cost_options)
        if kind is RateOptimal
        else OnlineConfidence(**cost_options)
    )
    rule.start_text()
    for rows, drafts in ((1, True), (64, False), (1, True)):
        for _ in range(300):
            rule.shared_by(rows)
            assert rule.start_round() == drafts
            if drafts:
                rule.end_round(4, 4)


def test_what_a_text_earns_alone_says_nothing_about_a_full_round() -> None:
    """The rate of a single request is so high that no draft would seem to pay for 16 requests."""
    single, shared = CostModel(0.01, 1.0, 0.0), CostModel(0.5, 1.0, 0.0)
    rule = RateOptimal(TablePredictor(0.8, mean=0.8), single, batch=BatchCosts((1, 16), (single, shared)))
    assert rule.rate.value * shared.per_token > 1.0
    rule.start_text()
    rule.shared_by(16)
    assert rule.start_round()


class Always(TrainedLength):
    """A user's controller with costs that drafts in every round."""

    def start_round(self) -> bool:
        return self.begin_draft(pays=True, may_pay=True)

    def observe(self, step: Step) -> bool:
        return step.index < 4


def test_the_rate_of_a_started_text_is_kept_when_other_requests_join() -> None:
    """A controller of the user needs no code for it. Before the first round, the rate is that of the shared costs."""
    single, shared = CostModel(0.1, 1.0, 0.0), CostModel(0.2, 2.0, 0.0)
    rule = Always(0.2, single, batch=BatchCosts((1, 16), (single, shared)))
    initial = steady_rate(0.2, shared)
    rule.shared_by(16)
    assert rule.rate.value == initial
    for _ in range(50):
        assert rule.start_round()
        rule.end_round(4, 4)
    learned = rule.rate.value
    assert learned > 1.5 * initial
    rule.shared_by(1)
    assert rule.rate.value > learned  # half the seconds
    rule.shared_by(16)
    assert rule.rate.value == pytest.approx(learned)


def texts_of(kind: type, rows: int) -> list[Any]:
    """Return the controllers of ``rows`` texts, which share a round and the adapting costs."""
    first = CostModel(0.1, 1.0, 0.0)
    rule = (
        kind(TablePredictor(0.8, mean=0.8), first, adapt=True) if kind is RateOptimal else kind(cost=first, adapt=True)
    )
    texts = [rule.for_text() for _ in range(rows)]
    for text in texts:
        text.start_text()
        text.shared_by(rows)
    return texts


@pytest.mark.parametrize("kind", [RateOptimal, OnlineConfidence])
def test_requests_of_a_round_draft_together_or_not_at_all(kind: type) -> None:
    """With adapting costs, the first request of a round decides, because all requests wait if one drafts."""
    rich, poor = texts_of(kind, 2)
    poor.rate.above *= 20  # no draft pays by this rate
    for first, second, drafts in ((rich, poor, True), (poor, rich, False), (rich, poor, True)):
        for text in (first, second):  # a round begins; the time of the one before it was not reported
            text.shared_by(2)
        assert [text.start_round() for text in (first, second)] == [drafts, drafts]
    rich.timed(2, 2, 1.2)
    for text in (rich, poor):  # alone in a round, each decides for itself
        text.shared_by(1)
        assert text.start_round() == (text is rich)
        text.timed(2, 2, 1.2)


@pytest.mark.parametrize("kind", [RateOptimal, OnlineConfidence])
def test_a_token_that_few_requests_draft_must_gain_more(kind: type) -> None:
    """All eight requests wait for the forward that gives it."""
    for drafting, goes_on in ((8, True), (1, False)):
        text = texts_of(kind, 8)[0]
        assert text.start_round()
        text.drafting_with(drafting)
        assert text.observe(step((0.9, 0.1))) == goes_on
        text.shared_by(8)
        assert text.observe(step((0.9, 0.1)))  # the next round begins with all requests


def test_fixed_costs_do_not_depend_on_other_requests() -> None:
    """The seed determines the drafts, alone and in a batch."""
    text = RateOptimal(TablePredictor(0.8, mean=0.8), CostModel(0.1, 1.0, 0.0))
    text.start_text()
    text.shared_by(8)
    assert text.start_round()
    text.drafting_with(1)
    assert text.observe(step((0.9, 0.1)))


def test_measured_costs_are_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "cost.json"
    words = ["bench", "cost", "--limit", "1", "--max-new-tokens", "8", "--repeats", "1", "--output", str(file)]
    assert cli.main(words) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads(file.read_text())
    assert CostModel.load(file).to_dict() == result["cost"]


# Costs learnt while serving, also of copies and trees, and in the decoder's rounds


FIRST = CostModel(t_draft=0.2, t_verify=0.95, t_verify_token=0.05)
EVEN = TablePredictor(0.6)


def slower(cost: CostModel, factor: float) -> CostModel:
    return CostModel(*(factor * seconds for seconds in cost.to_dict().values()))


def play(running: RunningCost, truth: CostModel, count: int, rounds: Sequence[tuple[int, int]]) -> CostModel:
    for i in range(count):
        tokens, forwards = rounds[i % len(rounds)]
        running.add(tokens, forwards, truth.round(tokens, forwards))
    return running.cost


CHAINS = tuple((n, n) for n in (0, 3, 1, 6, 2, 8))  # tokens and forwards of drafts
APART = ((0, 0), (2, 2), (3, 0), (5, 5), (8, 0))  # chains and copies
TOGETHER = ((0, 0), (5, 3), (7, 1), (5, 4), (6, 2))  # copies that a chain follows, or trees
STARTING = replace(FIRST, t_draft_start=0.3)


@pytest.mark.parametrize(
    ("first", "truth", "rounds", "count", "rel"),
    [
        (FIRST, FIRST, CHAINS, 300, 1e-9),
        (FIRST, replace(FIRST, t_draft=0.6), CHAINS, 1500, 0.03),
        (FIRST, replace(FIRST, t_draft_start=0.7), CHAINS, 1500, 0.05),
        # Where all rounds are alike, what was known of the ratio is kept.
        *(
            (first, slower(first, 2.0), rounds, 1500, 0.01)
            for first in (FIRST, STARTING)
            for rounds in (CHAINS, ((3, 3),), ((0, 0),))
        ),
        *(
            (CostModel(0.2, 1.0, 0.01, start), CostModel(0.3, 1.5, 0.25, 1.5 * start), rounds, 3000, 0.06)
            for start in (0.0, 0.4)
            for rounds in (APART, TOGETHER, APART + TOGETHER)
        ),
    ],
)
def test_costs_are_learned(
    first: CostModel, truth: CostModel, rounds: tuple[tuple[int, int], ...], count: int, rel: float
) -> None:
    learned = play(RunningCost(first), truth, count, rounds)
    chains = all(tokens == forwards for tokens, forwards in rounds)
    for tokens, forwards in CHAINS if chains else CHAINS + APART + TOGETHER:
        assert learned.round(tokens, forwards) == pytest.approx(truth.round(tokens, forwards), rel=rel)


def test_an_interruption_leaves_little_trace() -> None:
    running = RunningCost(FIRST)
    play(running, FIRST, 500, CHAINS)
    running.add(2, 2, 1000.0)
    while running.new:
        running.add(2, 2, FIRST.round(2))
    assert FIRST.round(2) < running.cost.round(2) < 1.1 * FIRST.round(2)


def test_a_round_without_a_draft_is_due_where_it_costs_little() -> None:
    """At the rate without drafts, such a round is due after some rounds; at a higher rate, for a share of the time."""
    for gain in (1.0, 1.5, 3.0):
        running, rate = RunningCost(FIRST), gain / FIRST.round(0)
        rounds = 0
        while not running.no_draft_is_due(rate):
            running.add(3, 3, FIRST.round(3))
            rounds += 1
        loss = FIRST.round(0) - 1.0 / rate
        expected = math.ceil(loss / TIME_SHARE / FIRST.round(3))
        assert rounds == expected or (expected < rounds < 50)
        assert running.no_draft_is_due(10.0 * rate)  # it says the same of all texts of a round
        running.add(0, 0, FIRST.round(0))
        assert not running.no_draft_is_due(rate)


@pytest.mark.parametrize("rule", [RateOptimal(EVEN, FIRST, adapt=True), OnlineConfidence(cost=FIRST, adapt=True)])
def test_drafts_that_do_not_pay_are_given_up_though_their_rounds_take_what_was_expected(
    rule: RateOptimal | OnlineConfidence,
) -> None:
    """A round without a draft takes less time than expected. Only such a round can show this."""
    truth = replace(FIRST, t_verify=0.55, t_draft_start=0.4)
    drafting = []
    for _ in range(20):  # texts
        rule.start_text()
        for n in range(100):
            drafting.append(rule.start_round())
            tokens = 3 if drafting[-1] else 0
            if tokens:
                rule.end_round(tokens, (0, 1, 3, 2, 1)[n % 5])  # 2.4 tokens in 1.75 seconds
            rule.timed(tokens, tokens, truth.round(tokens))
    assert all(drafting[:10])
    assert sum(drafting[-1000:]) < 50


@settings(max_examples=100)
@given(
    rounds=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(0, 1e3)), max_size=60),
    start=st.floats(0, 2),
)
def test_it_is_always_a_cost_model(rounds: list[tuple[int, int, float]], start: float) -> None:
    running = RunningCost(replace(FIRST, t_draft_start=start))
    for tokens, forwards, seconds in rounds:
        running.add(tokens, min(tokens, forwards), seconds)
        assert min(running.cost.t_draft, running.cost.t_verify, running.cost.t_verify_token) >= 0
        assert running.cost.round(0) > 0


class Late(RoundTimer):
    """Reports the seconds of a round after the next round, as on CUDA."""

    def between(self, first: float, last: float) -> float | None:
        return last - first if len(self.pending) > 1 else None


@pytest.mark.parametrize(
    ("late", "batched"),
    [
        (False, False),
        (True, True),
        pytest.param(False, True, marks=pytest.mark.slow),
        pytest.param(True, False, marks=pytest.mark.slow),
    ],
)
def test_the_decoder_learns_what_its_models_take(batched: bool, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are also reported while requests leave, for the last rounds that they shared with others."""
    if late:
        monkeypatch.setattr("specpilot.infer.hooks.RoundTimer", Late)
    _, *pair = timed_pair(monkeypatch, (0.09, 0.01), 0.02)
    truth = CostModel(0.02, 0.09, 0.01)
    rule = RateOptimal(EVEN, slower(truth, 0.5), adapt=True)
    fixed = RateOptimal(EVEN, slower(truth, 0.5))
    decoder = SpeculativeDecoder(*pair, length=rule)
    for seed in range(12):
        prompts = [[1, 2, 3], [4, 5, 6]]
        decoder.generate(prompts if batched else prompts[0], max_new_tokens=100, seed=seed)
    decoder.use_length(fixed)
    decoder.generate([1, 2, 3], max_new_tokens=50)
    monkeypatch.undo()
    # A draft's first forward may read two tokens, which costs nothing here.
    learned = rule.running.at(1 + batched).cost
    assert (learned.per_token, learned.round(0)) == pytest.approx((truth.per_token, truth.round(0)), rel=0.05)
    assert fixed.cost == slower(truth, 0.5)


# Costs of copied tokens and of trees


@pytest.mark.parametrize(
    ("step", "length"), [(None, None), (0.9, Fixed(1))], ids=["copies alone", "copies and a model"]
)
def test_copies_that_do_not_pay_are_given_up(
    step: float | None, length: Fixed | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The initial cost of copies is 0, but each copied token takes as long as a target forward over one token."""
    drafted = {}
    for adapt in (False, True):
        ngram = Ngram(cost=CostModel(0.9, 1.0, 0.0), adapt=adapt)
        _, target, draft = timed_pair(monkeypatch, (0.0, 1.0), step or 0.0, seed=5)
        decoder = SpeculativeDecoder(target, None if step is None else draft, length=length, ngram=ngram)
        outputs = [
            decoder.generate([*range(5, 25), 3, *range(5, 25)], max_new_tokens=60, seed=text) for text in range(9)
        ]
        drafted[adapt] = sum(output.stats.n_drafted for output in outputs)
    assert drafted[True] < drafted[False] / 10


def test_auto_measures_and_adapts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The costs of copies and of trees are measured and adapted, too."""
    time_forwards(monkeypatch, lambda model, n: float(model.model.config.num_hidden_layers))
    grown: dict[str, Any] = {"tree": "auto", "cost": "auto"}
    tree = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft+ngram", length="tiny-lag-free", **grown)
    assert tree.length.running is not None
    assert tree.length.running.first == pair_costs(tree.target, tree.drafts[0])
    untrained = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="online-confidence", **grown)
    assert isinstance(untrained.length, OnlineConfidenceTree)
    assert untrained.length.running is not None
    for draft, options, adapt in (
        ("tiny-draft+ngram", {"cost": "auto"}, True),
        ("tiny-draft+ngram", {"cost": "auto", "adapt": False}, False),
        ("tiny-draft", {"adapt": False}, False),
        ("ngram", {"cost": "auto"}, True),
        ("ngram", {"cost": "auto", "adapt": False}, False),
        ("ngram", {"cost": FIRST, "adapt": True}, True),
        ("ngram", {"cost": FIRST}, False),
    ):
        decoder = SpeculativeDecoder.from_pretrained("tiny", draft, **options)
        (arm,) = decoder.setup.arms
        assert arm.drafter.options.adapt == adapt  # type: ignore[attr-defined]
        assert ("corrected by the time of each round" in decoder.plan.describe()) == adapt
        if isinstance(arm.length, OnlineConfidence):
            assert (arm.length.running is not None) == adapt


TRUTH = CostModel(t_draft=0.3, t_verify=0.95, t_verify_token=0.05)


@pytest.mark.parametrize(
    "first",
    [
        replace(TRUTH, t_draft=5 * TRUTH.t_draft),  # not even a token that is certain would seem to pay
        replace(TRUTH, t_draft=100 * TRUTH.t_draft),
        replace(TRUTH, t_draft=TRUTH.t_draft / 5),
        replace(slower(TRUTH, 5.0), t_draft=TRUTH.t_draft),
        replace(slower(TRUTH, 0.2), t_draft=TRUTH.t_draft),
        slower(TRUTH, 5.0),
    ],
)
@pytest.mark.parametrize("kind", [RateOptimal, OnlineConfidence])
def test_costs_measured_in_a_noisy_second_are_corrected(first: CostModel, kind: type) -> None:
    """Costs that are wrong by a factor of 5, or 100 for a draft step, adapt to decide as the true costs."""

    def rounds(cost: CostModel) -> list[tuple[int, float]]:
        rule = (
            RateOptimal(TablePredictor(0.8), cost, adapt=True)
            if kind is RateOptimal
            else OnlineConfidence(cost=cost, adapt=True)
        )
        counts = []
        for _ in range(60):  # texts
            rule.start_text()
            for n in range(100):
                tokens = 0
                if rule.start_round():
                    survival = tokens = 1
                    while tokens < 8 and survival * 0.8 >= rule.rate.value * rule.cost.per_token:
                        survival, tokens = survival * 0.8, tokens + 1
                    rule.evidence = []
                    rule.end_round(tokens, min(tokens, (0, 8, 2, 5, 1, 8, 3)[n % 7]))
                seconds = TRUTH.round(tokens)
                rule.timed(tokens, tokens, seconds)
                counts.append((tokens, seconds))
        return counts[-1000:]

    right, corrected = (sum(tokens > 0 for tokens, _ in rounds(cost)) for cost in (TRUTH, first))
    assert right > 900
    assert corrected == pytest.approx(right, rel=0.05)


def test_a_draft_is_due_where_nothing_drafts_for_a_share_of_the_time() -> None:
    expensive = CostModel(t_draft=2.0, t_verify=1.0, t_verify_token=0.0)
    running, drafted, undrafted = RunningCost(expensive), 0, 0
    for _ in range(20_000):
        if running.draft_is_due():
            drafted += 1
            running.add(1, 1, expensive.round(1))
        else:
            undrafted += 1
            running.add(0, 0, expensive.round(0))
    first = math.log2(undrafted / 64)  # drafts that are due whatever they cost, ever more rarely
    assert 0 < (drafted - first) * expensive.t_draft <= 1.01 * TIME_SHARE * undrafted


@pytest.mark.parametrize("factor", [30.0, 1000.0])
@pytest.mark.parametrize("part", ["t_draft", "t_draft_start"])
def test_a_cost_of_drafting_that_is_far_too_high_is_corrected_soon(factor: float, part: str) -> None:
    """With such a cost, few rounds draft, and the limit by the cost would allow almost no draft to measure it."""
    truth = CostModel(t_draft=0.3, t_verify=0.95, t_verify_token=0.05, t_draft_start=0.1)
    running = RunningCost(replace(truth, **{part: factor * getattr(truth, part)}))
    for count in range(1500):
        tokens = int(running.draft_is_due())
        if count == 200:
            tokens = 1
        noise = 40.0 if count == 200 else 1.0 + 0.02 * (-1) ** count  # another process in one of these rounds
        running.add(tokens, tokens, noise * truth.round(tokens))
    assert running.cost.round(1) == pytest.approx(truth.round(1), rel=0.2)
    assert play(running, truth, 1500, CHAINS).round(4) == pytest.approx(truth.round(4), rel=0.05)


def test_a_draft_that_is_dear_is_tried_ever_more_rarely() -> None:
    expensive = CostModel(t_draft=100.0, t_verify=1.0, t_verify_token=0.0)
    running, draft_rounds = RunningCost(expensive), []
    for count in range(20_000):
        tokens = int(running.draft_is_due())
        draft_rounds += [count] * tokens
        running.add(tokens, tokens, expensive.round(tokens))
    assert draft_rounds[0] == 64
    assert all(later > 1.9 * earlier for earlier, later in pairwise(draft_rounds))
    assert running.first == expensive


def test_a_draft_that_was_not_timed_is_tried_again() -> None:
    """The first draft of a text also reads the prompt, so its time is not reported."""
    running = RunningCost(FIRST)
    while not running.draft_is_due():
        running.add(0, 0, FIRST.round(0))
    running.skip()
    assert running.draft_is_due()
    running.add(1, 1, FIRST.round(1))
    assert not running.draft_is_due()
