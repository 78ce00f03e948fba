"""Costs of copied tokens and trees learnt while serving."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from specpilot.controllers.length import Fixed, LengthController, OnlineConfidence, RateOptimal
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.draft_sources import DraftSources
from specpilot.controllers.length.online_confidence_tree import OnlineConfidenceTree
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.generation import Generation

from .clock import Clock, Timed, time_forwards
from .drafts import predictor
from .test_ngram_drafts import survivals
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
    assert [slow.plan(survivals(run, 6)) for run in range(1, 9)] == [
        sources.plan(survivals(run, 6)) for run in range(1, 9)
    ]


def generate(
    monkeypatch: pytest.MonkeyPatch, read: tuple[float, float], step: float | None, seed: int, **options: Any
) -> list[Generation]:
    """Texts of a target that reads n tokens in ``read[0] + read[1]·n`` seconds, and a draft, if any, of ``step``."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    draft = None if step is None else Timed(make(seed=seed, layers=1), clock, step, 0.0)
    decoder = SpeculativeDecoder(Timed(make(seed=0), clock, *read), draft, **options)
    return [decoder.generate(PROMPT, max_new_tokens=60, seed=text) for text in range(9)]


@pytest.mark.parametrize(
    ("step", "length"), [(None, None), (0.9, Fixed(1))], ids=["copies alone", "copies and a model"]
)
def test_copies_that_do_not_pay_are_given_up(
    step: float | None, length: Fixed | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied tokens seem to cost nothing, and each takes as long as a step of the target that reads one token."""
    drafted = {}
    for adapt in (False, True):
        ngram = Ngram(cost=CostModel(0.9, 1.0, 0.0), adapt=adapt)
        outputs = generate(monkeypatch, (0.0, 1.0), step, 5, length=length, ngram=ngram)
        drafted[adapt] = sum(output.stats.n_drafted for output in outputs)
    assert drafted[True] < drafted[False] / 10


def controller(*, trained: bool, cost: CostModel, adapt: bool) -> LengthController:
    return RateOptimal(predictor(), cost, adapt=adapt) if trained else OnlineConfidence(cost=cost, adapt=adapt)


@pytest.mark.parametrize("trained", [True, False])
def test_trees_follow_what_their_nodes_take(trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes seem to cost nothing, and each takes half as long as a step that reads one token."""
    nodes = {}
    for adapt in (False, True):
        length = controller(trained=trained, cost=CostModel(0.1, 1.0, 0.0), adapt=adapt)
        outputs = generate(monkeypatch, (0.5, 0.5), 0.1, 0, length=length, tree="auto")
        nodes[adapt] = sum(output.stats.n_drafted for output in outputs[3:])
        trees = [round.parents for output in outputs for round in output.rounds]
        assert any(parents != list(range(-1, len(parents) - 1)) for parents in trees)
    assert 0 < nodes[True] < nodes[False] / 2


def test_auto_adapts_copies_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path))
    time_forwards(monkeypatch, lambda model, n: float(model.model.config.num_hidden_layers))
    tree = SpeculativeDecoder.from_pretrained(
        "tiny", "tiny-draft+ngram", length="tiny-lag-free", tree="auto", cost="auto"
    )
    assert isinstance(tree.config.stopping, RateOptimal)
    assert isinstance(tree.length, RateOptimal)
    assert tree.config.stopping.running is tree.length.running is not None
    untrained = SpeculativeDecoder.from_pretrained(
        "tiny", "tiny-draft", length="online-confidence", tree="auto", cost="auto"
    )
    assert isinstance(untrained.config.stopping, OnlineConfidenceTree)
    assert untrained.config.stopping.running is not None
    measured = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft+ngram", cost="auto")
    given_cost = SpeculativeDecoder.from_pretrained("tiny", "ngram", cost=FIRST, adapt=True)
    plain = SpeculativeDecoder.from_pretrained("tiny", "ngram", cost=FIRST)
    assert [decoder.config.ngram and decoder.config.ngram.adapt for decoder in (measured, given_cost, plain)] == [
        True, True, False,
    ]  # fmt: skip
