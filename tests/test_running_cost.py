"""Costs learnt while serving, also of copies and trees: by a clock that the tests move, and in the decoder's rounds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.controllers.length import Fixed, OnlineConfidence, RateOptimal
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.online_confidence_tree import OnlineConfidenceTree
from specpilot.controllers.length.running_cost import LEAST_DRAFTING, LOSS, MAX_OVERRUN, RunningCost
from specpilot.infer.costs import pair_costs
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.engine import RoundTimer

from .clock import time_forwards, timed_pair
from .steps import Known

FIRST = CostModel(t_draft=0.2, t_verify=0.95, t_verify_token=0.05)
EVEN = Known(0.6)


def slower(cost: CostModel, factor: float) -> CostModel:
    return CostModel(*(factor * seconds for seconds in cost.as_dict().values()))


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
    found = play(RunningCost(first), truth, count, rounds)
    chains = all(tokens == forwards for tokens, forwards in rounds)
    for tokens, forwards in CHAINS if chains else CHAINS + APART + TOGETHER:
        assert found.round(tokens, forwards) == pytest.approx(truth.round(tokens, forwards), rel=rel)


def test_an_interruption_leaves_little_trace() -> None:
    running = RunningCost(FIRST)
    play(running, FIRST, 500, CHAINS)
    running.add(2, 2, 1000.0)
    while running.new:
        running.add(2, 2, FIRST.round(2))
    assert FIRST.round(2) < running.cost.round(2) < (1 + MAX_OVERRUN / 50) * FIRST.round(2)


def test_a_round_without_a_draft_is_due_where_it_costs_little() -> None:
    """At the rate of no drafts at once after some rounds; at three times that rate for a share of the time."""
    for gain in (1.0, 1.5, 3.0):
        running, rate = RunningCost(FIRST), gain / FIRST.round(0)
        rounds = 0
        while not running.alone_is_due(rate):
            running.add(3, 3, FIRST.round(3))
            rounds += 1
        lost = FIRST.round(0) - 1.0 / rate
        assert rounds == max(LEAST_DRAFTING, math.ceil(lost / LOSS / FIRST.round(3)))
        assert running.alone_is_due(10.0 * rate)  # it says the same of all texts of a round
        running.add(0, 0, FIRST.round(0))
        assert not running.alone_is_due(rate)


@pytest.mark.parametrize("rule", [RateOptimal(EVEN, FIRST, adapt=True), OnlineConfidence(cost=FIRST, adapt=True)])
def test_drafts_that_do_not_pay_are_given_up_though_their_rounds_take_what_was_expected(
    rule: RateOptimal | OnlineConfidence,
) -> None:
    """A round without a draft takes less than was expected, which only such a round can tell."""
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
    assert all(drafting[:LEAST_DRAFTING])
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
    """As on CUDA a round's seconds are known when the next one has ended."""

    def between(self, first: float, last: float) -> float | None:
        return last - first if len(self.untold) > 1 else None


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_the_decoder_learns_what_its_models_take(batched: bool, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while requests leave, whose last rounds are told when others share none with them."""
    if late:
        monkeypatch.setattr("specpilot.infer.engine.RoundTimer", Late)
    _, *pair = timed_pair(monkeypatch, (0.09, 0.01), 0.02)
    truth = CostModel(0.02, 0.09, 0.01)
    rule = RateOptimal(EVEN, slower(truth, 0.5), adapt=True)
    fixed = RateOptimal(EVEN, slower(truth, 0.5))
    decoder = SpeculativeDecoder(*pair, length=rule)
    for seed in range(12):
        prompts = [[1, 2, 3], [4, 5, 6]]
        decoder.generate(prompts if batched else prompts[0], max_new_tokens=100, seed=seed)
    decoder.config = replace(decoder.config, length=fixed)
    decoder.generate([1, 2, 3], max_new_tokens=50)
    monkeypatch.undo()
    # A draft's first forward may read two tokens, which costs nothing here.
    found = rule.running.at(1 + batched).cost
    assert (found.per_token, found.round(0)) == pytest.approx((truth.per_token, truth.round(0)), rel=0.05)
    assert fixed.cost == slower(truth, 0.5)


# Costs of copied tokens and of trees


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
        _, target, draft = timed_pair(monkeypatch, (0.0, 1.0), step or 0.0, seed=5)
        decoder = SpeculativeDecoder(target, None if step is None else draft, length=length, ngram=ngram)
        outputs = [
            decoder.generate([*range(5, 25), 3, *range(5, 25)], max_new_tokens=60, seed=text) for text in range(9)
        ]
        drafted[adapt] = sum(output.stats.n_drafted for output in outputs)
    assert drafted[True] < drafted[False] / 10


def test_auto_measures_and_adapts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the costs of copies and of trees."""
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path))
    time_forwards(monkeypatch, lambda model, n: float(model.model.config.num_hidden_layers))
    grown: dict[str, Any] = {"tree": "auto", "cost": "auto"}
    tree = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft+ngram", length="tiny-lag-free", **grown)
    assert tree.config.stopping.running is tree.length.running is not None
    assert tree.length.running.first == pair_costs(tree.target, tree.drafts[0])
    untrained = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="online-confidence", **grown)
    assert isinstance(untrained.config.stopping, OnlineConfidenceTree)
    assert untrained.config.stopping.running is not None
    for draft, options, adapt in (
        ("tiny-draft+ngram", {"cost": "auto"}, True),
        ("ngram", {"cost": "auto"}, True),
        ("ngram", {"cost": FIRST, "adapt": True}, True),
        ("ngram", {"cost": FIRST}, False),
    ):
        ngram = SpeculativeDecoder.from_pretrained("tiny", draft, **options).config.ngram
        assert ngram.adapt == adapt
