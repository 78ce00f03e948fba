"""Costs of copied tokens and trees learnt while serving."""

from __future__ import annotations

import time

import pytest
from specpilot.controllers.length import Fixed, RateOptimal
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.draft_sources import DraftSources
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters import Ngram
from specpilot.infer.generation import Generation
from transformers import PreTrainedModel

from .clock import Clock, Timed, time_forwards
from .test_best_first_tree import predictor
from .tiny import make

FIRST = CostModel(t_draft=0.2, t_verify=1.0, t_verify_token=0.01)
PROMPT = [*range(5, 25), 3, *range(5, 25)]


def test_a_slower_machine_keeps_what_pays() -> None:
    """Everything twice as slow at half the rate."""
    twice = CostModel(*(2 * cost for cost in (FIRST.t_draft, FIRST.t_verify, FIRST.t_verify_token)))
    sources, slow = DraftSources(FIRST, model=True), DraftSources(FIRST, model=True)
    for _ in range(20):
        for each in (sources, slow):
            each.end_round(3, 2, 4)
    slow.follow(twice, 5, 2)
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


def test_trees_follow_what_their_nodes_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes seem to cost nothing, and each takes half as long as a step that reads one token."""
    clock = Clock()
    target, draft = make(seed=0), make(seed=0, layers=1)
    monkeypatch.setattr(time, "perf_counter", clock)
    nodes = {}
    for adapt in (False, True):
        decoder = SpeculativeDecoder(
            Timed(target, clock, 0.5, 0.5),
            Timed(draft, clock, 0.1, 0.0),
            length=RateOptimal(predictor(), CostModel(0.1, 1.0, 0.0), adapt=adapt),
            tree="auto",
        )
        outputs = copying(decoder)
        nodes[adapt] = sum(output.stats.n_drafted for output in outputs[3:])
        trees = [round.parents for output in outputs for round in output.rounds]
        assert any(parents != list(range(-1, len(parents) - 1)) for parents in trees)
    assert 0 < nodes[True] < nodes[False] / 2
    greedy = [one.generate(PROMPT, max_new_tokens=40, temperature=0).tokens for one in (decoder, plain(target))]
    assert greedy[0] == greedy[1]


def plain(target: PreTrainedModel) -> SpeculativeDecoder:
    return SpeculativeDecoder(target, None)


def test_auto_adapts_copies_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    time_forwards(monkeypatch, lambda model, n: float(model.model.config.num_hidden_layers))
    tree = SpeculativeDecoder.from_pretrained(
        "tiny", "tiny-draft+ngram", length="tiny-lag-free", tree="auto", cost="auto"
    )
    assert isinstance(tree.config.stopping, RateOptimal)
    assert isinstance(tree.length, RateOptimal)
    assert tree.config.stopping.running is tree.length.running is not None
    measured = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft+ngram", cost="auto")
    given_cost = SpeculativeDecoder.from_pretrained("tiny", "ngram", cost=FIRST, adapt=True)
    plain = SpeculativeDecoder.from_pretrained("tiny", "ngram", cost=FIRST)
    assert [decoder.config.ngram and decoder.config.ngram.adapt for decoder in (measured, given_cost, plain)] == [
        True, True, False,
    ]  # fmt: skip
