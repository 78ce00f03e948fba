"""Rate-optimal trees are shaped by what nodes are worth and cost."""

from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specpilot.controllers.length import RateOptimal
from specpilot.controllers.length.cost_model import CostModel, level_cost, tree_cost
from specpilot.controllers.length.rate import RunningRatio
from specpilot.controllers.length.rate_optimal_tree import RateOptimalTree, Visit
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.best_first_tree import depth_first

from .drafts import CHEAP, predictor
from .tiny import make


def test_a_tree_costs_its_levels_and_its_nodes() -> None:
    """Root, two children of it, three below the first and one below the second: forwards over 1 and 2 nodes."""
    cost = CostModel(0.2, 0.7, 0.1)
    parents = [-1, -1, 0, 0, 0, 1]
    assert tree_cost(cost, parents) == pytest.approx(0.2 + level_cost(cost, 2) + cost.verification(7))
    assert level_cost(cost, 2) == pytest.approx(0.2 * 0.9 / 0.8)


def controller(cost: CostModel, mean: float = 0.6) -> RateOptimalTree:
    return RateOptimalTree(predictor(mean=mean), cost)


def test_a_tree_adapts_from_its_beginning() -> None:
    assert RateOptimalTree(predictor(), CHEAP, adapt=True).sibling(0.0) == 0.5


def test_a_level_is_drafted_if_its_nodes_pay_for_it() -> None:
    """One node of 0.1·0.9 does not pay for a forward, a dozen of them do."""
    rule = controller(CHEAP)
    rule.later = RunningRatio(0.9, 1.0, 1.0)
    rate = rule.rate.value
    one = 0.1 * 0.9 - rate * 0.02 * 1.05
    assert 0 < one < rate * 0.05
    assert rule.level([0.1]) == []
    assert rule.level([0.1] * 12) == [*range(12)]
    assert rule.level([0.9, 0.001]) == [0]  # not the node that is worth less than its own price


def test_dear_nodes_make_a_chain() -> None:
    """Where a node costs half a verification no sibling pays, and no round drafts a second child."""
    target, draft = make(), make(layers=1)
    for cost, chain in ((CostModel(0.01, 0.5, 0.5), True), (CostModel(0.01, 1.0, 0.0), False)):
        rule = RateOptimal(predictor(3.0, 0.95), cost)
        decoder = SpeculativeDecoder(target, draft, length=rule, tree="auto")
        output = decoder.generate([5, 9, 2], max_new_tokens=60, seed=2)
        chains = [r.parents == list(range(-1, len(r.parents) - 1)) for r in output.rounds]
        assert all(chains) == chain


def test_what_a_text_teaches() -> None:
    """Predictions of first children and of further ones are shifted apart, and the rate follows the rounds."""
    rule = controller(CHEAP)
    before = rule.sibling(0.0), rule.node_price
    for _ in range(50):
        rule.end_tree([-1, -1, 0, 1], [Visit(0.6, [0.5], kept=1), Visit(0.6, [], kept=0)])
    assert rule.sibling(0.0) > before[0]
    assert rule.node_price > before[1]  # three tokens a round
    for _ in range(200):
        rule.end_tree([-1, -1], [Visit(0.6, [0.5], kept=None)])
    assert rule.sibling(0.0) < before[0]
    assert rule.shift < 0
    assert rule.siblings.rescue.value < 0.25


def test_texts_share_what_siblings_teach_only_where_costs_adapt() -> None:
    for adapt in (False, True):
        rule = RateOptimalTree.of(RateOptimal(predictor(), CHEAP, adapt=adapt))
        for text in (copy(rule), copy(rule)):
            text.start_text()
            assert (text.siblings is rule.siblings) == adapt


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_nodes_in_depth_first_order(choices: list[int]) -> None:
    """Parents before children and siblings as before; a path of first children from the root is 0, 1, 2, …"""
    parents = [choice % (node + 1) - 1 for node, choice in enumerate(choices)]
    order = depth_first(parents)
    assert sorted(order) == list(range(len(parents)))
    place = {node: i for i, node in enumerate(order)} | {-1: -1}
    for node, parent in enumerate(parents):
        assert place[parent] < place[node]
        assert all(place[other] < place[node] for other in range(node) if parents[other] == parent)
    node, depth = -1, 0
    while node in parents:
        node = parents.index(node)
        assert place[node] == depth
        depth += 1
