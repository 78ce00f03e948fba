"""Costs of copied and drafted tokens learnt while serving."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.controllers.length import Fixed
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.draft_sources import DraftSources
from specpilot.controllers.length.source_costs import SourceCosts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters import Ngram
from specpilot.infer.generation import Generation

from .clock import Clock, Timed, time_forwards
from .tiny import make

FIRST = CostModel(t_draft=0.2, t_verify=1.0, t_verify_token=0.01)
TRUTH = CostModel(t_draft=0.3, t_verify=1.5, t_verify_token=0.25)
BOTH = ((0, 0), (0, 2), (3, 0), (0, 5), (8, 0), (2, 3), (6, 1))  # copied and drafted tokens
APART = BOTH[:5]
TOGETHER = ((0, 0), (2, 3), (6, 1), (1, 4), (4, 2))
PROMPT = [*range(5, 25), 3, *range(5, 25)]


def seconds(cost: CostModel, copied: int, drafted: int) -> float:
    return cost.round(copied + drafted) - cost.t_draft * copied


@pytest.mark.parametrize("rounds", [BOTH, APART, TOGETHER], ids=["both", "apart", "together"])
@pytest.mark.parametrize("start", [0.0, 0.4])
def test_what_tokens_of_each_source_take_is_learnt(rounds: tuple[tuple[int, int], ...], start: float) -> None:
    first, truth = replace(FIRST, t_draft_start=start), replace(TRUTH, t_draft_start=1.5 * start)
    costs = SourceCosts(first, adapt=True)
    for i in range(3000):
        copied, drafted = rounds[i % len(rounds)]
        costs.add(copied, drafted, seconds(truth, copied, drafted))
    for copied, drafted in BOTH:
        assert seconds(costs.cost, copied, drafted) == pytest.approx(seconds(truth, copied, drafted), rel=0.06)


def test_without_adaptation_nothing_changes() -> None:
    costs = SourceCosts(FIRST, adapt=False)
    for _ in range(50):
        costs.add(4, 0, 100.0)
    assert costs.cost is FIRST


@settings(max_examples=100)
@given(
    rounds=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(0, 1e3)), max_size=60),
    start=st.floats(0, 2),
)
def test_it_is_always_a_cost_model(rounds: list[tuple[int, int, float]], start: float) -> None:
    costs = SourceCosts(replace(FIRST, t_draft_start=start), adapt=True)
    for copied, drafted, spent in rounds:
        costs.add(copied, drafted, spent)
        assert costs.cost.round(0) > 0
        assert costs.cost.t_verify_token >= 0


def test_a_slower_machine_keeps_what_pays() -> None:
    """Everything twice as slow at half the rate."""
    twice = CostModel(*(2 * cost for cost in (FIRST.t_draft, FIRST.t_verify, FIRST.t_verify_token)))
    sources, slow = DraftSources(FIRST, model=True), DraftSources(FIRST, model=True)
    for _ in range(20):
        for each in (sources, slow):
            each.end_round(3, 2, 4)
    slow.follow(twice, 3, 2)
    assert slow.rate.value == pytest.approx(sources.rate.value / 2)
    assert [slow.plan(run, 6) for run in range(1, 9)] == [sources.plan(run, 6) for run in range(1, 9)]


def copying(decoder: SpeculativeDecoder) -> list[Generation]:
    return [decoder.generate(PROMPT, max_new_tokens=60, seed=seed) for seed in range(9)]


@pytest.mark.parametrize("drafting", [False, True], ids=["copies", "copies and a model"])
def test_copies_that_do_not_pay_are_given_up(drafting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied tokens seem to cost nothing, and each takes as long as a step of the target that reads one token."""
    clock = Clock()
    target, draft = make(seed=0), make(seed=5, layers=1)
    monkeypatch.setattr(time, "perf_counter", clock)
    found = {}
    for adapt in (False, True):
        decoder = SpeculativeDecoder(
            Timed(target, clock, 0.0, 1.0),
            Timed(draft, clock, 0.9, 0.0) if drafting else None,
            length=Fixed(1) if drafting else None,
            ngram=Ngram(cost=CostModel(0.9, 1.0, 0.0), adapt=adapt),
        )
        found[adapt] = copying(decoder)
    drafted = {adapt: sum(output.stats.n_drafted for output in outputs) for adapt, outputs in found.items()}
    assert drafted[True] < drafted[False] / 10


def test_auto_adapts_copies_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    time_forwards(monkeypatch, lambda model, n: float(model.model.config.num_hidden_layers))
    measured = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft+ngram", cost="auto")
    given_cost = SpeculativeDecoder.from_pretrained("tiny", "ngram", cost=FIRST, adapt=True)
    plain = SpeculativeDecoder.from_pretrained("tiny", "ngram", cost=FIRST)
    assert [decoder.config.ngram and decoder.config.ngram.adapt for decoder in (measured, given_cost, plain)] == [
        True, True, False,
    ]  # fmt: skip
