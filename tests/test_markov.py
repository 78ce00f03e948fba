"""The exact Markov model: its dynamic program against enumeration, its rates against draws, our rule against both."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.controllers.acceptance.ngram_index import nothing
from specpilot.controllers.length import (
    MAX_DRAFT,
    AcceptancePredictor,
    Fixed,
    LengthController,
    RateOptimal,
    Step,
)
from specpilot.controllers.length.cost_model import CostModel

from experiments.studies.markov import MarkovText, Nodes, Outcome, Policy, fixed, one_step, stationary, threshold
from experiments.studies.stopping import ACCEPTANCE, TRANSITION, bench_stopping, costs, one_step_fixed_point

costs_of_steps = st.builds(CostModel, st.floats(0.01, 1.5), st.floats(0.5, 2.0), st.floats(0.0, 0.2))
cost_models = st.builds(replace, costs_of_steps, t_draft_start=st.floats(0.0, 0.5))


@st.composite
def texts(draw: st.DrawFn, classes: int, longest: int, **known: bool) -> MarkovText:
    weights = [[draw(st.floats(0.05, 1.0)) for _ in range(classes)] for _ in range(classes)]
    transition = np.array([[w / sum(row) for w in row] for row in weights])
    known = known or {name: draw(st.booleans()) for name in ("next_known", "independent")}
    return MarkovText(transition, np.array([draw(st.floats(0, 1)) for _ in range(classes)]), longest=longest, **known)


def table(decisions: dict[int, Any]) -> Policy:
    def policy(nodes: Nodes, stop: Outcome, go: Outcome) -> Any:
        return np.array(decisions[nodes.k])

    return policy


@settings(max_examples=25)
@given(text=texts(classes=2, longest=2), cost=cost_models)
def test_the_dynamic_program_finds_the_best_of_all_policies(text: MarkovText, cost: CostModel) -> None:
    """Two decisions in a row, by the class observed: 64 policies, all tried."""
    rates = [
        text.rate(table({0: [first], 1: np.reshape(second, (2, 2))}), cost)
        for first in product([False, True], repeat=2)
        for second in product([False, True], repeat=4)
    ]
    assert text.optimal_rate(cost) == pytest.approx(max(rates))


@settings(max_examples=25)
@given(text=texts(classes=3, longest=8, next_known=True, independent=True), cost=costs_of_steps)
def test_looking_one_step_ahead_is_optimal_where_the_next_class_is_known(text: MarkovText, cost: CostModel) -> None:
    assert text.rate(one_step_fixed_point(text, cost), cost) == pytest.approx(text.optimal_rate(cost), rel=1e-9)


@settings(max_examples=25)
@given(text=texts(classes=3, longest=6), cost=cost_models, h=st.floats(0, 1), k=st.integers(0, 6))
def test_nothing_beats_the_optimum(text: MarkovText, cost: CostModel, h: float, k: int) -> None:
    best = text.optimal_rate(cost) * (1 + 1e-9)
    for rule in (one_step_fixed_point(text, cost), one_step_fixed_point(text, cost, 0.5), threshold(h), fixed(k)):
        assert text.rate(rule, cost) <= best


def test_one_class_is_the_closed_form() -> None:
    text, cost = MarkovText(np.ones((1, 1)), np.array([0.8])), CostModel(0.2, 1.0, 0.05, 0.3)
    for k in (0, 1, 5):
        assert text.rate(fixed(k), cost) == pytest.approx(sum(0.8**i for i in range(k + 1)) / cost.round(k))
    assert text.optimal_rate(cost) == pytest.approx(max(text.rate(fixed(k), cost) for k in range(MAX_DRAFT + 1)))
    assert stationary(np.array([[0.9, 0.1], [0.3, 0.7]])) == pytest.approx([0.75, 0.25])


def test_within_one_per_cent_of_the_optimum() -> None:
    """Three classes, three cost ratios. At best, a controller of today knows the class of the token just drafted."""
    rows = bench_stopping(ratios=(0.05, 0.5, 0.8), thresholds=[i / 10 for i in range(11)])["rows"]
    for row in rows:
        if row["seen"].startswith("in hand"):
            assert row["one_step"] >= 0.99
        if row["seen"] == "next, rounds exchangeable":
            assert row["one_step"] == pytest.approx(1.0, abs=1e-9)
            assert row["best_threshold"] < 0.991  # a threshold does not use the next class
        assert max(row[rule] for rule in ("one_step_mean", "best_threshold", "best_fixed")) <= 1 + 1e-9
    dear = [row for row in rows if row["ratio"] == 0.8]
    assert all(row["one_step"] > row["best_threshold"] + 0.04 for row in dear)  # which always drafts a token
    assert all(row["best_threshold"] >= row["threshold_tuned_elsewhere"] for row in rows)


class ClassPredictor(AcceptancePredictor):
    """Knows the class of the token just drafted, which is the token itself."""

    lag, mean = 0, 0.7

    def predict(self, step: Step) -> float:
        return ACCEPTANCE[step.token]


def simulate(rule: LengthController, cost: CostModel, rounds: int) -> float:
    """Tokens per second of ``rule`` on one long text, by random draws."""
    generator = np.random.default_rng(0)
    q = torch.ones(1)

    def after(seen: int) -> int:
        return int(np.searchsorted(np.cumsum(TRANSITION[seen])[:-1], generator.random()))

    tokens = seconds = 0.0
    last = 0
    for _ in range(rounds):
        drafted: list[int] = []
        on = rule.start_round()
        while on:
            drafted.append(after(drafted[-1] if drafted else last))
            on = len(drafted) < MAX_DRAFT and rule.observe(Step(len(drafted), drafted[-1], q, 0, q, q, nothing))
        kept = [generator.random() < ACCEPTANCE[token] for token in drafted]
        accepted = kept.index(False) if False in kept else len(kept)
        last = after(drafted[-1] if drafted else last) if accepted == len(kept) else drafted[accepted]
        if drafted:
            rule.end_round(len(drafted), accepted)
        tokens, seconds = tokens + accepted + 1, seconds + cost.round(len(drafted))
    return tokens / seconds


@pytest.mark.parametrize("ratio", [0.05, 0.21, 0.5])
def test_draws_agree_and_the_controller_finds_its_rate(ratio: float) -> None:
    """Thirty thousand rounds, whose rate has a standard deviation of 0.33 %; five of them are allowed."""
    text, cost = MarkovText(np.array(TRANSITION), np.array(ACCEPTANCE)), costs(ratio)
    assert simulate(Fixed(3), cost, 30_000) == pytest.approx(text.rate(fixed(3), cost), rel=0.017)
    online = simulate(RateOptimal(ClassPredictor(), cost), cost, 30_000)
    mean = float(stationary(text.transition) @ text.acceptance)
    assert online >= 0.968 * text.rate(one_step_fixed_point(text, cost, mean), cost)
    assert online >= 0.96 * text.optimal_rate(cost)


def test_a_wrong_rate_is_worse() -> None:
    text, cost = MarkovText(np.array(TRANSITION), np.array(ACCEPTANCE), next_known=True, independent=True), costs(0.21)
    best = text.optimal_rate(cost)
    for factor in (0.6, 1.5):
        assert text.rate(one_step(factor * best, text, cost), cost) < 0.995 * best
