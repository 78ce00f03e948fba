"""Adaptive draft lengths without vLLM: acceptance by position, the best length, probes, and files of times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.rate import fixed_length_rates
from specpilot_vllm.draft_lengths import AdaptiveLengths, PositionAcceptance
from specpilot_vllm.round_times import graph_table, load_seconds

from tests.helpers.refusals import refused

LONGEST, MAX_ROWS = 6, 8
COST = CostModel(0.15, 0.9, 0.02, 0.1)


def seconds(cost: CostModel = COST) -> Any:
    """Return the times of steps in which requests share nine tenths of the time."""
    rows = np.arange(MAX_ROWS + 1)[:, None]
    return (0.9 + 0.1 * rows) * np.array([cost.round(k) for k in range(LONGEST + 1)])


def accepted_of(rng: np.random.Generator, acceptance: list[float], drafted: int, count: int) -> list[int]:
    """Return numbers of accepted tokens of drafts whose token i is accepted with probability ``acceptance[i]``."""
    is_accepted = rng.random((count, drafted)) < acceptance[:drafted]
    accepted: list[int] = np.cumprod(is_accepted, axis=1).sum(1).tolist()
    return accepted


def verify_drafts(lengths: AdaptiveLengths, drafted: int, accepted: int) -> None:
    """Verify a thousand drafts with the same outcome."""
    for _ in range(1000):
        lengths.observe([drafted], [accepted])


def test_acceptance_by_position_approaches_the_true_one() -> None:
    rng, true = np.random.default_rng(1), [0.9, 0.5, 0.8, 0.8]
    estimate = PositionAcceptance(4)
    for _ in range(1500):
        estimate.add(np.array([4, 4]), np.array(accepted_of(rng, true, 4, 2)))
    expected = np.cumprod([1.0, *true])
    assert estimate.survivals == pytest.approx(expected, abs=0.06)


def test_positions_beyond_the_drafts_follow_the_last_known_position() -> None:
    rng, estimate = np.random.default_rng(2), PositionAcceptance(4)
    for _ in range(600):
        estimate.add(np.array([2]), np.array(accepted_of(rng, [0.9, 0.6], 2, 1)))
    survivals = estimate.survivals
    second = survivals[2] / survivals[1]
    assert survivals[3:] == pytest.approx([survivals[2] * second, survivals[2] * second**2])


def test_drafts_of_several_lengths_count_in_the_positions_that_they_reach() -> None:
    estimate = PositionAcceptance(3)
    estimate.add(np.array([1, 3, 3]), np.array([1, 3, 0]))
    assert estimate.trials.tolist() == [3, 1, 1]
    assert estimate.accepted.tolist() == [2, 1, 1]


def test_a_change_of_the_prompts_is_noticed_within_a_hundred_drafts() -> None:
    rng, estimate = np.random.default_rng(3), PositionAcceptance(4)
    for acceptance, drafts in ((0.9, 2000), (0.3, 100)):
        for _ in range(drafts):
            estimate.add(np.array([4]), np.array(accepted_of(rng, [acceptance] * 4, 4, 1)))
    assert estimate.survivals[1] < 0.5


@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("rows", [1, MAX_ROWS])
def test_the_best_length_is_that_of_the_true_acceptance(acceptance: float, rows: int) -> None:
    """The estimate may choose a length that is less than 1 % slower than the best one."""
    rng, times = np.random.default_rng(4), seconds()
    lengths = AdaptiveLengths(range(LONGEST + 1), times)
    for _ in range(3000):
        drafted = lengths.table()[rows]
        lengths.count_step(rows, drafted)
        if drafted:
            lengths.observe([drafted] * rows, accepted_of(rng, [acceptance] * LONGEST, drafted, rows))
    rates = fixed_length_rates(acceptance ** np.arange(LONGEST + 1), times[rows])
    assert rates[lengths.best[rows]] > 0.99 * rates.max()


@pytest.mark.parametrize("share", [0.002, 0.02])
def test_probes_lose_their_share_of_the_time(share: float) -> None:
    """If no token is accepted, each probe loses the additional time of a step with a draft."""
    times = seconds()
    lengths = AdaptiveLengths(range(LONGEST + 1), times, share)
    verify_drafts(lengths, 1, 0)
    assert lengths.best[1] == 0
    spent, probes, steps = 0.0, 0, 20_000
    for _ in range(steps):
        drafted = lengths.table()[1]
        lengths.count_step(1, drafted)
        assert drafted in (0, 1)
        spent += times[1, drafted]
        if drafted:
            probes += 1
            lengths.observe([1], [0])
    probe_time = probes * (times[1, 1] - times[1, 0])
    assert probe_time / spent == pytest.approx(share, rel=0.05)


def test_drafts_begin_again_when_acceptance_rises() -> None:
    rng, lengths = np.random.default_rng(5), AdaptiveLengths(range(LONGEST + 1), seconds())
    verify_drafts(lengths, 1, 0)
    assert lengths.best[1] == 0
    for _ in range(4000):
        drafted = lengths.table()[1]
        lengths.count_step(1, drafted)
        if drafted:
            lengths.observe([drafted], accepted_of(rng, [0.9] * LONGEST, drafted, 1))
    assert lengths.best[1] >= 4


def test_only_lengths_of_the_list_are_chosen() -> None:
    lengths = AdaptiveLengths([1, 2, 4], seconds())
    lengths.allowance = 100.0
    assert {*lengths.table()} | {*lengths.best.tolist()} <= {1, 2, 4}
    verify_drafts(lengths, 4, 4)
    assert lengths.table() == [4] * (MAX_ROWS + 1)


# Files of times


def test_times_are_interpolated_and_proportional_beyond_the_largest_number(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"seconds": {"1": {"0": 1.0, "2": 3.0}, "4": {"0": 4.0, "2": 8.0}}}))
    table = load_seconds(str(file), 2, 8, reads_text=True)
    assert table[1].tolist() == [1.0, 2.0, 3.0]
    assert table[2].tolist() == pytest.approx([2.0, 3.0 + 1 / 3, 4.0 + 2 / 3])
    assert table[8].tolist() == [8.0, 12.0, 16.0]


@pytest.mark.parametrize("reads_text", [True, False])
def test_costs_of_other_commands(tmp_path: Path, reads_text: bool) -> None:
    """Without a draft, a draft model still reads the text in vLLM."""
    file = tmp_path / "cost.json"
    shared = CostModel(0.05, 0.4, 0.02)
    batch = {"1": COST.to_dict(), "4": shared.to_dict()}
    file.write_text(json.dumps({"cost": COST.to_dict(), "batch": batch}))
    table = load_seconds(str(file), 3, 4, reads_text=reads_text)
    for rows, cost in ((1, COST), (4, shared)):
        assert table[rows, 1:].tolist() == pytest.approx([rows * cost.round(k) for k in (1, 2, 3)])
        assert table[rows, 0] == pytest.approx(rows * cost.round(0, int(reads_text)))
    assert load_seconds(0.2, 1, 1, reads_text=False)[1].tolist() == pytest.approx([1.0, 1.2])


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (
            {"1": {"0": 1.0, "2": 2.0}},
            r"has times of at most 2 drafted tokens, but vLLM drafts 3; .*--longest 3",
        ),
        ({}, r"times.json: seconds: times by number of requests and draft length are expected; measure again"),
        ({"one": {"0": 1.0}}, r"times.json: seconds: times by number of requests"),
        ({"1": {"0": 0.0, "3": 1.0}}, r"times.json: seconds: every time must be positive"),
        ({"1": 2.0}, r"times.json: "),
    ],
)
def test_damaged_times(tmp_path: Path, times: Any, message: str) -> None:
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"seconds": times}))
    with refused(message):
        load_seconds(str(file), 3, 8, reads_text=True)


def test_missing_times(tmp_path: Path) -> None:
    with refused(r"none.json'?: no such file; measure the times with 'specpilot-vllm times"):
        load_seconds(str(tmp_path / "none.json"), 3, 8, reads_text=True)


@pytest.mark.parametrize(("longest", "max_rows"), [(3, 64), (3, 4), (8, 4), (8, 1)])
def test_the_table_for_graphs_has_all_lengths_that_fit(longest: int, max_rows: int) -> None:
    table = graph_table(longest, max_rows)
    assert [first for first, _, _ in table] == [1, *(last + 1 for _, last, _ in table[:-1])]
    assert table[-1][1:] == [max_rows, longest]
    assert [length for _, _, length in table] == list(range(longest - len(table) + 1, longest + 1))
