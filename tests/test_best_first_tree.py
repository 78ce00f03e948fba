"""Rate-optimal trees: exact whatever their shape depends on, and shaped by what nodes are worth and cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import copy
from typing import Any
from zlib import crc32

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.controllers.length import Fixed, OnlineConfidence, RateOptimal
from specpilot.controllers.length.cost_model import CostModel, level_cost, tree_cost
from specpilot.controllers.length.rate import RunningRatio
from specpilot.controllers.length.rate_optimal import SHIFT
from specpilot.controllers.length.rate_optimal_tree import RateOptimalTree, Visit
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.distribution import TokenDistribution
from specpilot.infer.draft import Draft
from specpilot.infer.drafters.best_first_tree import depth_first
from specpilot.infer.models import ancestors_of
from specpilot.infer.random_source import RandomSource
from specpilot.infer.verify import candidates
from specpilot.infer.verify.mcss import without
from torch import Tensor

from .drafts import CHEAP, FREE, predictor
from .enumeration import as_distribution, distribution, output_distribution
from .tiny import make

Path = tuple[int, ...]
Table = dict[Path, Tensor]  # what comes after each path


def tree_decoder(pair: SpeculativeDecoder, bias: float = 1.0) -> SpeculativeDecoder:
    length = RateOptimal(predictor(bias), CHEAP)
    return SpeculativeDecoder(pair.target, pair.drafts, length=length, tree="auto")


def draw_dynamic_tree(q: Table, depth: int, shape: Callable[..., int], rng: RandomSource, *, drop: bool) -> Draft:
    """Children are drawn while ``shape`` of all tokens so far says so, then come candidates that it chooses as well.

    Args:
        drop: leave a drawn child out for its own token, which is not exact.
    """
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[TokenDistribution] = []
    level: list[tuple[int, Path]] = [(-1, ())]
    for _ in range(depth):
        coming = []
        for node, path in level:
            left, seen = q[path], set[int]()
            while bool(left.any()) and shape(path, sorted(seen), tokens) % 3:  # the first as well may not be drawn
                token = rng.sample(left)
                seen.add(token)
                if not (drop and token == 0):
                    coming.append((len(tokens), (*path, token)))
                    tokens.append(token)
                    parents.append(node)
                    rows.append(as_distribution(left[None]))
                left = without(left, token)
            for token in range(len(left)):
                if token not in seen and shape(path, token, tokens) % 2:
                    coming.append((len(tokens), (*path, token)))
                    tokens.append(token)
                    parents.append(node)
                    rows.append(TokenDistribution(torch.ones(1, 1).double(), torch.tensor([[token]]), len(left)))
        level = [(node, path) for node, path in coming if shape(path, tokens) % 4]  # the others get no children
    return Draft(tokens, rows, parents, depth)


def verified_distribution(
    p: Table, q: Table, depth: int, shape: Callable[..., int], *, drop: bool = False
) -> dict[Path, float]:
    """Of depth + 1 tokens: those of one round, then what later rounds would add."""

    def run(rng: RandomSource) -> Path:
        draft = draw_dynamic_tree(q, depth, shape, rng, drop=drop)
        above = [
            tuple(draft.tokens[n] for n in [*ancestors_of(draft.parents, node), node])
            for node in range(len(draft.tokens))
        ]
        verdict = candidates(as_distribution(torch.stack([p[path] for path in [(), *above]])), draft, rng)
        assert all(parent == draft.parents[node] for parent, node in itertools.pairwise([-1, *verdict.path]))
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        while len(tokens) < depth + 1:
            tokens.append(rng.sample(p[tuple(tokens)]))
        return tuple(tokens)

    return output_distribution(run)


def expected_distribution(p: Table, vocab: int, depth: int) -> dict[Path, float]:
    return {
        tokens: float(torch.stack([p[tokens[:i]][token] for i, token in enumerate(tokens)]).prod())
        for tokens in itertools.product(range(vocab), repeat=depth + 1)
    }


@pytest.mark.parametrize(("depth", "vocab", "examples"), [(1, 4, 40), (2, 2, 30)])
def test_any_shape_and_any_candidates_keep_the_targets_distribution(depth: int, vocab: int, examples: int) -> None:
    """The shape is a hash of everything it may depend on: elder siblings' tokens, other branches, the path."""

    @settings(max_examples=examples)
    @given(data=st.data(), salt=st.integers(0, 1000))
    def check(data: st.DataObject, salt: int) -> None:
        paths = [path for n in range(depth + 1) for path in itertools.product(range(vocab), repeat=n)]
        p, q = ({x: torch.tensor(data.draw(distribution(vocab))).double() for x in paths} for _ in range(2))
        found = verified_distribution(p, q, depth, lambda *seen: crc32(repr((salt, seen)).encode()))
        for tokens, probability in expected_distribution(p, vocab, depth).items():
            assert found.get(tokens, 0.0) == pytest.approx(probability, abs=1e-7)

    check()


def test_dropping_a_drawn_child_for_its_token_would_be_seen() -> None:
    """The enumeration tells an inexact tree from an exact one."""
    p = q = {path: torch.tensor([0.5, 0.5]).double() for path in [(), (0,), (1,)]}

    def one_child(*seen: object) -> int:
        return 4 if len(seen) == 3 and seen[1] == [] else 0

    exact, biased = (verified_distribution(p, q, 1, one_child, drop=drop) for drop in (False, True))
    assert exact == pytest.approx(expected_distribution(p, 2, 1))
    assert biased != pytest.approx(expected_distribution(p, 2, 1), abs=0.05)


def test_one_child_a_node_costs_what_a_chain_costs() -> None:
    cost = CostModel(0.2, 0.7, 0.1, 0.3)
    for drafted in range(5):
        assert tree_cost(cost, range(-1, drafted - 1)) == pytest.approx(cost.round(drafted))


def test_a_tree_costs_its_levels_and_its_nodes() -> None:
    """Root, two children of it, three below the first and one below the second: forwards over 1 and 2 nodes."""
    cost = CostModel(0.2, 0.7, 0.1)
    parents = [-1, -1, 0, 0, 0, 1]
    assert tree_cost(cost, parents) == pytest.approx(0.2 + level_cost(cost, 2) + cost.verification(7))
    assert level_cost(cost, 2) == pytest.approx(0.2 * 0.9 / 0.8)


def controller(cost: CostModel, mean: float = 0.6) -> RateOptimalTree:
    return RateOptimalTree(predictor(mean=mean), cost)


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


def test_siblings_teach_until_one_is_accepted() -> None:
    rule, other = controller(CHEAP), controller(CHEAP)
    rule.end_tree([-1, -1, -1, -1], [Visit(0.6, [0.5, 0.3, 0.2], kept=2)])
    assert rule.siblings.shift == pytest.approx(SHIFT * (1 - 0.5 - 0.3))
    other.end_tree([-1, -1, -1, -1], [Visit(0.6, [0.5, 0.3, 0.2])])
    assert other.siblings.shift == pytest.approx(-SHIFT * (0.5 + 0.3 + 0.2))
    other.end_tree([-1, -1], [Visit(0.6, [0.5], kept=0)])  # says nothing of siblings
    assert other.siblings.shift == pytest.approx(-SHIFT)


def test_texts_share_what_siblings_teach_only_where_costs_adapt() -> None:
    for adapt in (False, True):
        rule = RateOptimalTree.of(RateOptimal(predictor(), CHEAP, adapt=adapt))
        for text in (copy(rule), copy(rule)):
            text.start_text()
            assert (text.siblings is rule.siblings) == adapt


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": None}, "tree='auto': is grown by predicted acceptance and costs"),
        ({"length": Fixed(3)}, "tree='auto': is grown by predicted acceptance and costs"),
        ({"length": OnlineConfidence(0.3)}, "tree='auto': is grown by predicted acceptance and costs"),
        ({"verifier": "spec-infer"}, "a tree='auto' has a rule of its own"),
        ({"draft": None}, "tree='auto': takes one draft model"),
        ({"draft": [make(), make()]}, "tree='auto': takes one draft model"),
        ({"tree": "autos"}, "give the children at each level, as in '3x2x1', or 'auto'"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    own = {"draft": make(), "length": RateOptimal(predictor(), FREE), "tree": "auto"} | options
    with pytest.raises(InputError, match=message):
        SpeculativeDecoder(make(), **own)


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
