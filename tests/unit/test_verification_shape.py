"""Times of verifications that are not a line in the number of tokens: their fit, their format, and their decisions."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.common.json_file import build
from specpilot.controllers.length import MAX_DRAFT, OnlineConfidence, RateOptimal
from specpilot.controllers.length.cost_model import BatchCosts, CostModel, level_cost, read_cost, read_costs
from specpilot.controllers.length.draft_sources import DraftSources, Plan
from specpilot.controllers.length.rate import best_continuation
from specpilot.controllers.length.rate_optimal_tree import RateOptimalTree
from specpilot.controllers.length.running_cost import RunningCost, fit_rounds, shaped
from specpilot.controllers.length.verification_shape import equivalent_tokens
from specpilot.infer.costs import StepTimes
from specpilot.infer.decoder import SpeculativeDecoder

from ..helpers.costs import models, shapes
from ..helpers.drafts import TEXT, predictor
from ..helpers.drafts import small as small_pair
from ..helpers.steps import TablePredictor, step

LINE = CostModel(1.0, 9.0, 1.0)
# Flat up to six tokens, then a step of 6 at every fourth token. A draft step takes 1.
STEPS = {n: 10.0 if n <= 6 else 16.0 + 6.0 * ((n - 7) // 4) for n in range(1, 22)}
WALL = CostModel(0.5, 9.0, 1.0, 0.0, ((1, 1.0), (6, 1.0), (7, 1000.0), (8, 1001.0)))


def flat_then(step_seconds: float) -> CostModel:
    """Return costs of a verification that is flat up to six tokens, and has one step at the seventh."""
    return CostModel(0.5, 9.0, 1.0, 0.0, ((1, 1.0), (6, 1.0), (7, 1.0 + step_seconds), (40, 1.0 + step_seconds)))


def line_of(times: dict[int, float]) -> CostModel:
    rounds = [(n - 1, 0, seconds) for n, seconds in times.items()]
    return fit_rounds(rounds + [(n - 1, n - 1, seconds + (n - 1) * 1.0) for n, seconds in times.items() if n > 1])


times = st.dictionaries(st.integers(2, 40), st.floats(0.5, 50.0), min_size=3, max_size=12)


# The fit


def test_steps_are_found() -> None:
    cost = shaped(line_of(STEPS), STEPS)
    assert [cost.verification(n) for n in STEPS] == pytest.approx([*STEPS.values()], rel=0.051)  # no token is free
    jumps = [n for n in range(1, 21) if cost.verification(n + 1) > 1.2 * cost.verification(n)]
    assert jumps == [6, 10, 14, 18]


def test_a_line_has_no_shape() -> None:
    """Also with noise of 3 %."""
    rng = Random(3)
    for noise in (0.0, 0.03):
        measured = {n: (9.0 + n) * (1 + rng.uniform(-noise, noise)) for n in range(1, 22)}
        line = line_of(measured)
        assert shaped(line, measured) is line
        assert "verify_shape" not in line.to_dict()


def test_few_times_have_no_shape() -> None:
    line = CostModel(1.0, 9.0, 1.0)
    assert shaped(line, {1: 1.0, 2: 5.0, 3: 50.0}) is line
    assert shaped(line, {2: 1.0, 3: 1.0, 4: 50.0, 5: 50.0}) is line


@given(first=st.floats(0.5, 50.0), more=times)
def test_times_never_decrease_and_have_the_measured_values(first: float, more: dict[int, float]) -> None:
    measured = {1: first, **more}
    cost = shaped(line_of(measured), measured)
    seconds = [cost.verification(n) for n in range(1, 150)]
    assert all(before <= after for before, after in pairwise(seconds))
    assert all(cost.added(k) >= 0 for k in range(149))
    if cost.verify_shape:
        assert cost.verification(1) == pytest.approx(min(measured.values()))
        for n in measured:  # as slow as measured, unless more tokens were faster; no token is free
            least = min(seconds for number, seconds in measured.items() if number >= n)
            free = 0.01 * cost.round(0) * 40
            assert least * (1 - 1e-9) <= cost.round(n - 1, 0) <= (least + free) * (1 + 1e-9)


def test_a_busy_moment_is_no_step() -> None:
    """Other processes made the verifications of three and of five tokens slow."""
    measured = {n: 10.0 if n < 8 else 30.0 for n in range(1, 13)} | {3: 25.0, 5: 80.0}
    cost = shaped(line_of(measured), measured)
    assert [cost.round(n - 1, 0) for n in (1, 3, 5, 7, 8, 12)] == pytest.approx([10.0] * 4 + [30.0] * 2, rel=0.07)


def test_the_start_of_a_draft_stays_apart() -> None:
    """Two tokens take two seconds more than one, as do all larger numbers. The draft's forwards do not."""
    measured = {n: 10.0 + 2.0 * (n > 1) + 9.0 * (n > 8) for n in range(1, 17)}
    line = CostModel(1.0, 9.9, 0.1, 2.0)
    cost = shaped(line, measured)
    assert cost.t_draft_start == 2.0
    assert level_cost(cost, 2) == pytest.approx(cost.t_draft * 1.01)
    assert [cost.round(n - 1, 0) for n in measured] == pytest.approx([*measured.values()], rel=0.07)


@given(shape=shapes, tokens=st.floats(1.0, 60.0), more=st.floats(0.0, 30.0))
def test_equivalent_tokens_do_not_decrease(shape: tuple[tuple[int, float], ...], tokens: float, more: float) -> None:
    low, high = equivalent_tokens(shape, tokens), equivalent_tokens(shape, tokens + more)
    assert low <= high + 1e-9
    assert [equivalent_tokens(shape, n) for n, _ in shape] == [weight for _, weight in shape]


def test_beyond_the_measured_numbers_the_upper_half_is_continued() -> None:
    """The last interval is flat, and the one before has a step."""
    shape = ((1, 1.0), (4, 1.0), (5, 5.0), (7, 5.0), (8, 9.0), (10, 9.0))
    assert equivalent_tokens(shape, 10 + 5) == pytest.approx(9.0 + 5 * (9.0 - 5.0) / 5)


# The format


@settings(max_examples=50)
@given(cost=models)
def test_costs_are_read_again(cost: CostModel) -> None:
    text = json.dumps({"cost": cost.to_dict()})
    assert build(CostModel, json.loads(text)["cost"], "cost") == cost
    assert hash(build(CostModel, cost.to_dict(), "cost")) == hash(cost)


def test_cost_files_with_and_without_a_shape(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("costs") / "cost.json"
    for cost in (WALL, LINE):
        file.write_text(json.dumps({"cost": cost.to_dict()}))
        assert read_costs(file)[0] == cost
    for shape in ([[1, 1.0]], [[2, 1.0], [3, 2.0]], [[1, 1.0], [3, 0.5]], [[1, 1.0], [1, 2.0]], [[1, 1.0], ["x", 2.0]]):
        file.write_text(json.dumps({"cost": LINE.to_dict() | {"verify_shape": shape}}))
        with pytest.raises(InputError, match=r"verify_shape.*measure again"):
            read_costs(file)


def test_costs_of_several_requests_are_a_line() -> None:
    costs = BatchCosts((1, 8), (WALL, LINE))
    assert costs.at(1) == WALL
    assert costs.at(4).verify_shape == ()


# Chains


@settings(max_examples=200)
@given(
    cost=models, survival=st.floats(0.0, 1.0), later=st.floats(0.0, 1.0), rate=st.floats(0.1, 2.0),
    drafted=st.integers(0, 19),
)  # fmt: skip
def test_the_best_continuation_is_the_best_of_all_numbers(
    cost: CostModel, survival: float, later: float, rate: float, drafted: int
) -> None:
    def gain(tokens: int) -> float:
        seconds = tokens * cost.t_draft + cost.verification(drafted + tokens + 1) - cost.verification(drafted + 1)
        return sum(survival * later**k for k in range(tokens)) - rate * seconds

    best = best_continuation(survival, later, rate, cost, drafted)
    assert best.gain == pytest.approx(max(map(gain, range(MAX_DRAFT + 1))), abs=1e-6)
    assert best.gain == pytest.approx(gain(best.tokens), abs=1e-6)


@settings(max_examples=100)
@given(rate=st.floats(0.01, 3.0), survival=st.floats(0.0, 1.0), later=st.floats(0.0, 1.0), drafted=st.integers(0, 19))
def test_with_a_line_the_next_token_decides(rate: float, survival: float, later: float, drafted: int) -> None:
    cost = CostModel(0.2, 0.9, 0.1)
    assume(survival != pytest.approx(rate * cost.per_token))
    continues = best_continuation(survival, later, rate, cost, drafted).tokens > 0
    assert continues == (survival >= rate * cost.per_token)


def drafted(rule: RateOptimal | OnlineConfidence) -> int:
    if not rule.start_round():
        return 0
    return next((k for k in range(1, MAX_DRAFT) if not rule.observe(step([9.0, 1.0], index=k))), MAX_DRAFT)


def test_a_chain_stops_at_a_step_unless_the_tokens_after_it_pay_for_it() -> None:
    """Six tokens are verified in the time of one: the last token and a draft of five."""
    for mean in (0.7, 0.95):
        assert drafted(RateOptimal(TablePredictor(mean, mean), flat_then(30.0))) == 5
        assert drafted(RateOptimal(TablePredictor(mean, mean), WALL)) == 5
    assert drafted(RateOptimal(TablePredictor(0.99, 0.99), flat_then(2.0))) > 10
    # One token more does not pay for the step alone.
    cost = flat_then(6.0)
    rate = RateOptimal(TablePredictor(0.99, 0.99), cost).rate.value
    assert 1.0 < rate * (cost.t_draft + cost.added(5)) < 5.0
    assert drafted(RateOptimal(TablePredictor(0.99, 0.99), cost)) > 6


def test_online_confidence_stops_at_a_step() -> None:
    rule = OnlineConfidence(cost=WALL)
    for _ in range(50):
        for position in range(1, 9):
            rule.fit.add(position, (3.0, 0.0, 0.0, 0.0), True)
    assert drafted(rule) == 5


def test_copies_stop_at_a_step() -> None:
    sources = DraftSources(WALL, model=False)
    assert sources.plan([1.0] * 20) == Plan(5, False)
    assert DraftSources(CostModel(0.5, 9.999, 0.001), model=False).plan([1.0] * 20) == Plan(19, False)
    # One copy more does not pay for the step alone, but all that follow pay together.
    beyond = DraftSources(flat_then(6.0), model=False)
    assert beyond.rate.value * beyond.cost.added(5) > 1.0
    assert beyond.plan([0.99**k for k in range(20)]) == Plan(19, False)
    with_model = DraftSources(WALL, model=True)
    with_model.drafted.above, with_model.forwards.above = 2 * with_model.drafted.below, 2 * with_model.forwards.below
    with_model.accepted.above = 1.9 * with_model.accepted.below
    assert with_model.plan([0.99**k for k in range(20)]) in (Plan(5, False), Plan(3, True))


# Trees


def grown(cost: CostModel, accept: float, sibling: float, *, children: int = 3) -> list[int]:
    """Return the parents of a tree whose nodes' first children are accepted with probability ``accept``.

    Each further child is accepted with probability ``sibling`` after the children before it are rejected.
    """
    rule = RateOptimalTree(TablePredictor(accept, accept), cost)
    assert rule.start_round()
    parents: list[int] = []
    survivals: list[float] = []
    level = [-1]
    depth = 0
    while level and depth < MAX_DRAFT:
        start = len(parents)
        for position, node in enumerate(level):
            survival = 1.0 if node < 0 else survivals[node]
            parents.append(node)
            survivals.append(survival * accept)
            rejected = survival * (1.0 - accept)
            waiting = len(level) - position - 1
            for _ in range(children - 1):
                if rejected * sibling < rule.node_price(len(parents) + waiting):
                    break
                parents.append(node)
                survivals.append(rejected * sibling)
                rejected *= 1.0 - sibling
        ends = [*range(start, len(parents))]
        level = [ends[index] for index in rule.level([survivals[node] for node in ends], len(parents))]
        depth += 1
    return parents


def is_chain(parents: Sequence[int]) -> bool:
    return [*parents] == [*range(-1, len(parents) - 1)]


def test_a_tree_stops_at_a_step() -> None:
    """Five nodes are verified with the last token in the time of one token."""
    for accept in (0.3, 0.5, 0.7, 0.9):
        assert len(grown(WALL, accept, 0.5)) <= 5
        assert len(grown(flat_then(40.0), accept, 0.5)) <= 5
    assert len(grown(WALL, 0.6, 0.5)) == 5
    assert not is_chain(grown(WALL, 0.3, 0.5))  # siblings use tokens that a chain would leave free
    assert is_chain(grown(WALL, 0.8, 0.5))  # the chain needs all free tokens, each of which gains more than a sibling


def test_a_tree_goes_beyond_a_step_that_pays() -> None:
    for seconds, accept in ((0.5, 0.6), (2.0, 0.95)):
        assert len(grown(flat_then(seconds), accept, 0.6)) > 6


def test_free_tokens_make_trees_and_expensive_ones_chains() -> None:
    """Acceptance is the same."""
    flat = CostModel(0.5, 9.0, 1.0, 0.0, ((1, 1.0), (12, 1.1), (13, 60.0), (14, 61.0)))
    steep = CostModel(0.5, 7.0, 3.0)
    assert not is_chain(grown(flat, 0.5, 0.5))
    assert is_chain(grown(steep, 0.5, 0.5))


@settings(max_examples=100)
@given(
    rate=st.floats(0.05, 2.0), later=st.floats(0.05, 0.99), survivals=st.lists(st.floats(0.0, 1.0), max_size=12),
    per_token=st.floats(0.0, 0.5), nodes=st.integers(0, 100),
)  # fmt: skip
def test_with_a_line_a_level_is_that_of_single_prices(
    rate: float, later: float, survivals: list[float], per_token: float, nodes: int
) -> None:
    """With a line, the number of nodes has no effect, and each node is compared with its own price."""
    cost = CostModel(0.2, 0.9, per_token)
    rule = RateOptimalTree(predictor(mean=0.6), cost)
    rule.rate.above, rule.rate.below = rate, 1.0
    rule.later.above, rule.later.below = later, 1.0
    node_price = max(rate * per_token, 0.02)
    assert rule.node_price(nodes) == node_price
    price = max(rate * (per_token + read_cost(cost)), 0.02)
    gains = [
        s * later - price + max(0.0, s * (1.0 - later) * rule.siblings.rescue.value - node_price) for s in survivals
    ]
    forward = rate * (level_cost(cost, 1) - read_cost(cost))
    surplus = sum(gain for gain in gains if gain >= 0.0)
    assume(surplus != pytest.approx(forward) and not any(gain == pytest.approx(0.0, abs=1e-9) for gain in gains))
    assert rule.level(survivals, nodes) == [i for i, gain in enumerate(gains) if gain >= 0.0 and surplus >= forward]


def test_a_decoder_grows_trees_up_to_the_step(tmp_path_factory: pytest.TempPathFactory) -> None:
    target, draft = small_pair("model, 5 tokens", 3, tmp_path_factory.mktemp("models"))
    sizes = {}
    for name, cost in (("wall", WALL), ("free", CostModel(0.01, 9.99, 0.01))):
        decoder = SpeculativeDecoder(target, draft, length=RateOptimal(predictor(2.0), cost), tree="auto")
        output = decoder.generate([token % 5 for token in TEXT], max_new_tokens=40, temperature=1.0, seed=2)
        sizes[name] = max(len(round.drafted) for round in output.rounds)
    assert sizes["wall"] <= 5 < sizes["free"]


# Measurements


def test_the_times_of_single_steps_have_a_shape() -> None:
    cost = StepTimes(STEPS, [1.0], 1.0, 30, [[1.0] * 27]).cost
    assert cost.t_draft == 1.0
    assert [cost.round(n - 1, 0) for n in STEPS] == pytest.approx([*STEPS.values()], rel=0.06)
    assert StepTimes(STEPS, [1.0], 1.0, 1, [[1.0]]).cost.verify_shape == ()  # too few forwards


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_running_costs_keep_the_shape_and_correct_its_scale(factor: float) -> None:
    first = flat_then(12.0)
    truth = CostModel(
        factor * first.t_draft, factor * first.t_verify, factor * first.t_verify_token, 0.0, first.verify_shape
    )
    running, rng = RunningCost(first), Random(4)
    for _ in range(600):
        tokens = rng.choice([0, 2, 5, 8, 12])
        forwards = rng.choice([tokens, tokens // 2])
        running.add(tokens, forwards, truth.round(tokens, forwards) * rng.uniform(0.98, 1.02))
    lengths = (0, 2, 5, 6, 8, 12)
    assert [running.cost.round(k) for k in lengths] == pytest.approx([truth.round(k) for k in lengths], rel=0.05)
    assert running.cost.verify_shape == first.verify_shape
    assert running.at(2).cost.verify_shape == running.at(7).cost.verify_shape == ()


def test_running_costs_of_a_flat_shape() -> None:
    """No round has another number of equivalent tokens, so that the times do not determine the cost of a token."""
    first = CostModel(0.5, 9.0, 1.0, 0.0, ((1, 1.0), (30, 1.0), (31, 2.0)))
    running = RunningCost(first)
    for _ in range(40):
        for tokens in (0, 3):
            running.add(tokens, tokens, 2.0 * first.round(tokens))
    assert math.isclose(running.cost.round(3), 2.0 * first.round(3), rel_tol=0.05)
    assert math.isclose(running.cost.round(0), 2.0 * first.round(0), rel_tol=0.05)
