"""Rate-optimal stopping: the price of a token, the rule, and the values that it learns from a text."""

import math
from copy import copy
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from specpilot.controllers.length import MAX_DRAFT, RateOptimal
from specpilot.controllers.length.cost_model import CostModel, level_cost, read_cost, tree_cost
from specpilot.controllers.length.rate import RunningRatio, drafting_pays, steady_rate
from specpilot.controllers.length.rate_optimal_tree import RateOptimalTree, Visit

from ..helpers.drafts import CHEAP, predictor
from ..helpers.steps import TablePredictor, step

FAIR = CostModel(0.2, 1.0, 0.02)
costs = st.builds(CostModel, st.floats(0.001, 2.0), st.floats(0.1, 5.0), st.floats(0.0, 0.5))


def drafted(rule: RateOptimal) -> int:
    """Return the number of tokens that the next round drafts."""
    if not rule.start_round():
        return 0
    return next((k for k in range(1, MAX_DRAFT) if not rule.observe(step(index=k))), MAX_DRAFT)


@settings(max_examples=60)
@given(cost=costs, start=st.floats(0.0, 2.0), acceptance=st.floats(0.0, 1.0))
def test_the_steady_rate_is_that_of_the_best_fixed_length(cost: CostModel, start: float, acceptance: float) -> None:
    cost = replace(cost, t_draft_start=start)
    rates = [sum(acceptance**i for i in range(k + 1)) / cost.round(k) for k in range(MAX_DRAFT + 1)]
    assert steady_rate(acceptance, cost) == pytest.approx(max(rates))


@settings(max_examples=200)
@given(first=st.floats(0, 1), later=st.floats(0, 1), rate=st.floats(0.1, 2.0), cost=costs, start=st.floats(0, 2.0))
def test_a_round_drafts_where_some_length_is_worth_the_start(
    first: float, later: float, rate: float, cost: CostModel, start: float
) -> None:
    cost = replace(cost, t_draft_start=start)
    gains = [
        sum(first * later**k for k in range(drafted)) - rate * (cost.round(drafted) - cost.round(0))
        for drafted in range(1, MAX_DRAFT + 1)
    ]
    assume(max(gains) != pytest.approx(0.0, abs=1e-9))
    assert drafting_pays(first, later, rate, cost) == (max(gains) > 0)


@pytest.mark.parametrize("lag", [0, 1])
@settings(max_examples=100)
@given(
    cost=costs,
    probabilities=st.lists(st.floats(0.5, 1.0), min_size=MAX_DRAFT, max_size=MAX_DRAFT),
    mean=st.floats(0.3, 0.95),
    before=st.lists(st.integers(0, 3), max_size=8),
)
@example(cost=CostModel(1.0, 0.9, 0.5), probabilities=[1.0] * MAX_DRAFT, mean=0.85, before=[1, 0, 0, 1, 0, 0])
def test_drafting_goes_on_while_it_pays(
    lag: int, cost: CostModel, probabilities: list[float], mean: float, before: list[int]
) -> None:
    """Decisions are those of the formula. Tokens without a prediction count with the mean acceptance so far."""
    rule = RateOptimal(TablePredictor(probabilities, mean, lag), cost)
    for accepted in before:
        rule.end_round(3, accepted)
    first, later, price = rule.first.value, rule.later.value, rule.rate.value * cost.per_token
    gains = [first]
    if lag:
        gains.append(first * later)
    while len(gains) < MAX_DRAFT:
        gains.append(math.prod(probabilities[: len(gains) - lag]) * later ** (1 + lag))
    assume(not any(gain == pytest.approx(price) for gain in gains))  # or rounding decides
    # Where a token costs as much as a round without drafts nothing is drafted, though rounds that went badly have left
    # a rate at which a token would seem to pay.
    pays = next((k for k, gain in enumerate(gains) if gain < price), MAX_DRAFT)
    assert drafted(rule) == (0 if cost.never_pays else pays)


def test_accepted_tokens_move_the_means() -> None:
    rule, shorter = (RateOptimal(TablePredictor(0.5), FAIR) for _ in range(2))
    start = 0.6, 0.6, rule.prior_rate
    assert (rule.first.value, rule.later.value, rule.rate.value) == pytest.approx(start)
    rule.end_round(5, 2)  # y_1 and y_2 are kept, y_3 is not, y_4 and y_5 were never verified
    shorter.end_round(3, 2)
    assert (rule.first.value, rule.later.value) == (shorter.first.value, shorter.later.value)
    assert rule.first.value > 0.6 > rule.later.value
    assert rule.rate.value < shorter.rate.value  # for the same tokens the longer draft took more time
    for _ in range(1000):
        rule.end_round(3, 3)
    assert (rule.first.value, rule.later.value) == pytest.approx((1.0, 1.0), abs=0.02)
    assert rule.rate.value == pytest.approx(4 / FAIR.round(3), rel=0.02)
    for _ in range(1000):
        rule.end_round(3, 1)  # the first token is kept, the second is not
    assert (rule.first.value, rule.later.value) == pytest.approx((1.0, 0.0), abs=0.05)
    assert rule.rate.value == pytest.approx(2 / FAIR.round(3), rel=0.02)
    rule.start_text()
    assert (rule.first.value, rule.rate.value) == pytest.approx((0.6, rule.prior_rate))


def test_where_drafting_does_not_pay_it_probes_now_and_then() -> None:
    rule = RateOptimal(TablePredictor(0.9, mean=0.9), replace(FAIR, t_draft=0.6))

    def play(accepted: bool, rounds: int) -> list[bool]:
        starts = []
        for _ in range(rounds):
            starts.append(rule.start_round())
            if starts[-1]:
                rule.end_round(1, int(accepted))
        return starts

    assert all(play(True, 20))
    refused = play(False, 2000)
    probes = [place for place, drafted in enumerate(refused) if drafted]
    gaps = [after - before for before, after in pairwise(probes)]
    # Shorter gaps come first: while the rate falls to the autoregressive one, drafting may seem to pay again. Then each
    # pause is twice as long as the one before, up to a longest one.
    pauses = [gap - 1 for gap in gaps]
    longest = pauses.index(max(pauses))
    assert 100 < max(pauses) < 1000
    assert {*pauses[longest:]} == {max(pauses)}
    assert [after / before for before, after in pairwise(pauses[longest - 4 : longest + 1])] == [2.0] * 4
    assert rule.rate.value == pytest.approx(1 / FAIR.round(0), rel=0.05)  # autoregressive, but for the probes
    noticed = play(True, 4000)
    assert all(noticed[noticed.index(True) :])  # by the first probe that succeeds


def test_texts_share_whether_drafts_pay_and_what_siblings_teach_only_where_costs_adapt() -> None:
    for adapt in (False, True):
        rule = RateOptimal(TablePredictor(0.9, mean=0.9), replace(FAIR, t_draft=0.6), adapt=adapt)
        text = copy(rule)
        text.start_text()
        while text.start_round():
            text.end_round(1, 0)
        assert rule.start_round() == (not adapt)
        tree = RateOptimalTree.of(rule)
        other = copy(tree)
        other.start_text()
        assert (other.siblings is tree.siblings) == adapt


def test_a_text_on_which_the_predictor_is_wrong_shifts_it() -> None:
    rule = RateOptimal(TablePredictor(0.9, mean=0.9), FAIR)
    for _ in range(40):
        rule.start_round()
        rule.observe(step(index=1))
        rule.end_round(1, 0)  # never kept
    assert rule._shifted(0.9) < 0.6
    rule.start_text()
    assert rule._shifted(0.9) == pytest.approx(0.9)


# Trees are shaped by what nodes are worth and cost


def test_a_tree_costs_its_levels_and_its_nodes() -> None:
    """The tree has two nodes at level 1 and four at level 2, so its forwards read 1 and 2 nodes."""
    cost = CostModel(0.2, 0.7, 0.1)
    parents = [-1, -1, 0, 0, 0, 1]
    assert tree_cost(cost, parents) == pytest.approx(0.2 + level_cost(cost, 2) + cost.verification(7))
    assert level_cost(cost, 2) == pytest.approx(0.2 * 0.9 / 0.8)
    below = [-1, 0, 1, 1, 2]  # four levels, for each of which the draft reads one node
    assert tree_cost(cost, below) == pytest.approx(4 * level_cost(cost, 1) + cost.verification(6))


def tree_rule(cost: CostModel, mean: float = 0.6) -> RateOptimalTree:
    return RateOptimalTree(predictor(mean=mean), cost)


def test_a_level_is_drafted_if_its_nodes_pay_for_it() -> None:
    """A single node with π = 0.09 does not pay for a forward, but twelve such nodes do."""
    rule = tree_rule(CHEAP)
    rule.later = RunningRatio(0.9, 1.0, 1.0)
    rate = rule.rate.value
    node_gain = 0.1 * 0.9 - rate * 0.02 * 1.05
    assert 0 < node_gain < rate * 0.05
    assert rule.level([0.1], 1) == []
    assert rule.level([0.1] * 12, 12) == [*range(12)]
    assert rule.level([0.9, 0.001], 2) == [0]  # not the node that is worth less than its own price
    node_price = rate * (CHEAP.t_verify_token + read_cost(CHEAP))
    assert (
        rule.level([0.99 * node_price / 0.9] * 10_000, 10_000) == []
    )  # nor where a sibling, worth less than its price, would help


def test_a_tree_keeps_the_rate_in_the_units_of_new_costs() -> None:
    """Costs of twice the time halve the rate of the current tree and of all earlier ones."""
    parents, visits = [-1, -1, 0, 1], [Visit(0.6, [0.5], accepted_child=1), Visit(0.6, [], accepted_child=0)]
    rule, plain = RateOptimalTree(predictor(mean=0.6), CHEAP, adapt=True), tree_rule(CHEAP)
    assert rule.running is not None
    for other in (rule, plain):
        other.end_tree(parents, visits)
    rule.running.cost = CostModel(*(2 * seconds for seconds in CHEAP.to_dict().values()))
    for other in (rule, plain):
        other.end_tree(parents, visits)
    assert rule.rate.value == pytest.approx(plain.rate.value / 2)


def test_trees_adapt_to_the_text() -> None:
    """The log-odds of predictions for first and for further children shift separately. The rate follows the rounds."""
    rule = tree_rule(CHEAP)
    before = rule.sibling(0.0), rule.node_price(1)
    for _ in range(50):
        rule.end_tree([-1, -1, 0, 1], [Visit(0.6, [0.5], accepted_child=1), Visit(0.6, [], accepted_child=0)])
    assert rule.sibling(0.0) > before[0]
    assert rule.node_price(1) > before[1]  # three tokens a round
    for _ in range(200):
        rule.end_tree([-1, -1], [Visit(0.6, [0.5], accepted_child=None)])
    assert rule.sibling(0.0) < before[0]
    assert rule.shift < 0
    assert rule.siblings.rescue.value < 0.25
