"""The replayed time of a text is the sum of the times of its rounds, also if a verification's time is not a line."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from specpilot.compare.chains import ChainSetting, ReplayedChains, replay_chain
from specpilot.compare.interval import interval
from specpilot.compare.recorded import (
    Counts,
    Rule,
    by_setting,
    informed_rule,
    measure_all,
    replay_rule,
    replayed_by,
    speed_of,
    speed_ratio_of,
)
from specpilot.compare.store import Store
from specpilot.controllers.acceptance.ngram_index import NO_MATCH
from specpilot.controllers.length import MAX_DRAFT, Fixed, LengthController, Step
from specpilot.controllers.length.cost_model import CostModel
from specpilot.data_gen.prompts import PromptRow
from specpilot.simulate.replay import replay
from specpilot.simulate.trace import END, Trace, to_tensors
from specpilot.train.predictor_module import PredictorModule

from ..helpers.costs import lines, models

# Flat up to four tokens, and eight seconds more from the fifth token on.
STEP = CostModel(0.1, 0.5, 0.5, 0.2, ((1, 1.0), (4, 1.0), (5, 17.0), (40, 17.0)))


def text_of(kept: Sequence[bool], confidences: Sequence[float] | None = None) -> Trace:
    """Return a trace whose drafts continue after a rejected token as they do along the text."""
    count = len(kept)
    confidences = confidences or [0.5] * count
    return Trace(
        text=[7] * count, budget=count, kept=[*kept], after=[*range(1, count), END], tokens=[7] * count,
        q=[*confidences], signals=[(confidence, 0.0, 0.0) for confidence in confidences],
        ngram_matches=[NO_MATCH] * count, accept=[float(accepted) for accepted in kept], states=torch.zeros(count, 1),
    )  # fmt: skip


class Listed(LengthController):
    """Drafts of given lengths, one for each round, from the beginning again after the last."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def start_text(self) -> None:
        self.round = -1

    def start_round(self) -> bool:
        self.round += 1
        return self.lengths[self.round % len(self.lengths)] > 0

    def observe(self, step: Step) -> bool:
        return step.index < self.lengths[self.round % len(self.lengths)]


def drafts_of(kept: Sequence[bool], lengths: Sequence[int]) -> list[int]:
    """Return the number of drafted tokens of every round, without a replay."""
    position, drafts = 1, list[int]()
    while position < len(kept):
        drafts.append(min(lengths[len(drafts) % len(lengths)], len(kept) - position - 1))
        accepted = 0
        while accepted < drafts[-1] and kept[position + accepted]:
            accepted += 1
        position += accepted + 1
    return drafts


def counts_of(kept: Sequence[bool], lengths: Sequence[int]) -> Counts:
    return Counts.of(replay(text_of(kept), Listed(lengths), frozenset()))


texts = st.lists(st.lists(st.sampled_from([True, True, False]), min_size=2, max_size=60), min_size=1, max_size=4)
lengths_of_rounds = st.lists(st.integers(0, MAX_DRAFT), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(cost=models | lines, kept=texts, lengths=lengths_of_rounds)
def test_the_time_of_a_text_is_that_of_its_rounds(cost: CostModel, kept: list[list[bool]], lengths: list[int]) -> None:
    seconds = sum(cost.round(drafted) for text in kept for drafted in drafts_of(text, lengths))
    tokens = sum(len(text) - 1 for text in kept)
    speed = speed_of([counts_of(text, lengths) for text in kept], cost)
    assert speed.value == pytest.approx(tokens * cost.round(0) / seconds, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(cost=models, kept=texts, lengths=lengths_of_rounds, other=lengths_of_rounds)
def test_the_ratio_of_two_speeds(cost: CostModel, kept: list[list[bool]], lengths: list[int], other: list[int]) -> None:
    first, second = ([counts_of(text, each) for text in kept] for each in (lengths, other))
    ratio = speed_of(first, cost).value / speed_of(second, cost).value
    assert speed_ratio_of(first, second, cost).value == pytest.approx(ratio, rel=1e-9)


def test_intervals_resample_the_times_of_prompts() -> None:
    """Drafts of three texts are within the flat part, those of three others are verified after the step."""
    speed = speed_of([counts_of([True] * 41, [length]) for length in (3, 3, 3, 9, 9, 9)], STEP)
    flat, stepped = 10 * STEP.round(3), 4 * STEP.round(9)
    expected = [6 * 40 * STEP.round(0) / (number * flat + (6 - number) * stepped) for number in (3, 1, 5)]
    assert [speed.value, speed.low, speed.high] == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(cost=lines, kept=texts, lengths=lengths_of_rounds, p_min=st.sampled_from([0.0, 0.6]))
def test_the_numbers_of_a_line_are_those_of_the_sums(
    cost: CostModel, kept: list[list[bool]], lengths: list[int], p_min: float
) -> None:
    """All digits of the speed-up and of its interval are those of eq. 2.1 with the sums over rounds."""
    drafts = [drafts_of(text, lengths) for text in kept]
    columns = [
        np.array([len(text) - 1 for text in kept], dtype=float),
        np.array([sum(rounds) for rounds in drafts], dtype=float),
        np.array([len(rounds) for rounds in drafts], dtype=float),
        np.array([sum(map(bool, rounds)) for rounds in drafts], dtype=float),
    ]

    def speed(generated: Any, drafted: Any, forwards: Any, started: Any) -> Any:
        seconds = cost.per_token * drafted + cost.verification(1) * forwards + cost.t_draft_start * started
        return generated / seconds * cost.round(0)

    counts = [counts_of(text, lengths) for text in kept]
    assert speed_of(counts, cost) == interval(speed, *columns)
    longer = [counts_of(text, [4]) for text in kept]
    ratio = speed_ratio_of(counts, longer, cost)
    assert ratio.value == speed_of(counts, cost).value / speed_of(longer, cost).value

    setting = ChainSetting(5, p_min)
    replayed = [replay_chain(text_of(text, [0.7, 0.5] * 30), setting) for text in kept]
    generated, steps, started = (np.array([chain[i] for chain in replayed], dtype=float) for i in range(3))
    drafted = np.array([sum(k * number for k, number in enumerate(chain.rounds)) for chain in replayed], dtype=float)
    forwards = np.array([sum(chain.rounds) for chain in replayed], dtype=float)

    def chain_speed(generated: Any, steps: Any, drafted: Any, forwards: Any, started: Any) -> Any:
        seconds = (
            cost.t_draft * steps + cost.t_verify_token * drafted
            + cost.verification(1) * forwards + cost.t_draft_start * started
        )  # fmt: skip
        return generated * cost.round(0) / seconds

    chains = ReplayedChains({setting: np.array([chain.row for chain in replayed], dtype=float)})
    assert chains.speed(setting, cost) == interval(chain_speed, generated, steps, drafted, forwards, started)
    assert chains.value(setting, cost) == chains.speed(setting, cost).value


@settings(max_examples=60, deadline=None)
@given(
    cost=models, kept=st.lists(st.booleans(), min_size=2, max_size=40), length=st.integers(1, 12),
    p_min=st.sampled_from([0.0, 0.6]), data=st.data(),
)  # fmt: skip
def test_the_time_of_chains_is_that_of_their_rounds(
    cost: CostModel, kept: list[bool], length: int, p_min: float, data: st.DataObject
) -> None:
    """A token below the minimum confidence takes a draft step, and is not verified."""
    confidences = [data.draw(st.sampled_from([0.5, 0.7])) for _ in kept]
    position, seconds = 1, 0.0
    while position < len(kept):
        longest = min(length, len(kept) - position - 1)
        proposed = confidences[position : position + longest]
        verified = next((i for i, confidence in enumerate(proposed) if confidence < p_min), longest)
        start = cost.t_draft_start * (longest > 0)
        seconds += start + min(verified + 1, longest) * cost.t_draft + cost.verification(verified + 1)
        accepted = next((i for i in range(verified) if not kept[position + i]), verified)
        position += accepted + 1
    setting = ChainSetting(length, p_min)
    counts = np.array([replay_chain(text_of(kept, confidences), setting).row], dtype=float)
    speed = (len(kept) - 1) * cost.round(0) / seconds
    assert ReplayedChains({setting: counts}).value(setting, cost) == pytest.approx(speed, rel=1e-9)
    assert ReplayedChains({setting: counts}).speed(setting, cost).low == pytest.approx(speed, rel=1e-9)


# The informed bound


@settings(max_examples=100, deadline=None)
@given(cost=models | lines, rounds=st.integers(1, 3))
@example(cost=STEP, rounds=3)
def test_no_controller_is_faster_than_the_informed_bound(cost: CostModel, rounds: int) -> None:
    """All drafted tokens are accepted, so that a controller is a sequence of draft lengths.

    The text ends with a round of the length that has the most tokens per second; all sequences are compared.
    """
    best = max(range(MAX_DRAFT + 1), key=lambda k: (k + 1) / cost.round(k))
    tokens = rounds * (best + 1)
    least = [0.0]  # the least time for a number of tokens, over all sequences
    for number in range(1, tokens + 1):
        least.append(min(cost.round(k) + least[number - k - 1] for k in range(min(number, MAX_DRAFT + 1))))
    trace = text_of([True] * (tokens + 1))
    ((counts,),) = replay_rule([trace], informed_rule(cost), frozenset())
    assert speed_of([counts], cost).value >= tokens * cost.round(0) / least[-1] * (1 - 1e-9)


def test_the_informed_bound_uses_the_steps_of_the_verification() -> None:
    """A draft of three tokens is verified in the flat part. By a line, longer drafts would be the fastest."""
    trace = text_of([True] * 41)
    for cost, length, number in ((STEP, 3, 10), (STEP.line, MAX_DRAFT, 1)):
        ((informed,),) = replay_rule([trace], informed_rule(cost), frozenset())
        assert informed.rounds[length] == number
        fixed = replay_rule([trace], FIXED_LENGTHS, frozenset())
        assert speed_of([informed], cost).value >= max(speed_of(counts, cost).value for counts in fixed)


FIXED_LENGTHS = Rule.untrained("fixed", range(1, MAX_DRAFT + 1), lambda k: Fixed(int(k)))


# Stored results


def test_stored_counters_are_read_again_and_those_of_other_fields_are_not(tmp_path: Path) -> None:
    traced: list[int] = []

    def traces(rows: Sequence[PromptRow]) -> list[Trace]:
        traced.append(len(rows))
        return [text_of([True] * 30) for _ in rows]

    tracer: Any = SimpleNamespace(identity={}, decoder=SimpleNamespace(stop_tokens=[]), traces=traces)
    rows, rule = [PromptRow("a", "x", "some"), PromptRow("b", "x", "more")], FIXED_LENGTHS
    measure = replayed_by(tracer, rule)
    earlier = {**measure.identity, "counters": ["generated", "drafted", "accepted", "target_forwards", "drafts"]}
    assert measure.identity.keys() == earlier.keys()
    assert measure.identity["counters"] != earlier["counters"]
    speeds = []
    for _ in range(2):
        with Store(tmp_path) as store:
            measured = measure_all(tracer, rows, {rule.name: measure}, store, Console(quiet=True))
        counts = by_setting([rule], json.loads(json.dumps(measured)))
        speeds.append({setting: speed_of(of_prompts, STEP) for setting, of_prompts in counts.items()})
    assert traced == [2]  # the second time, results are read
    assert speeds[0] == speeds[1]
    assert speeds[0]["fixed", 3].value == pytest.approx(29 * 1.0 / (7 * STEP.round(3) + STEP.round(0)))


# Training


@pytest.mark.parametrize("cost", [STEP, STEP.line])
def test_epochs_are_compared_by_the_times_of_rounds(cost: CostModel) -> None:
    kept = [True, False, True, True, True, False, True, True] * 4 + [True]
    shards = [SimpleNamespace(tensors=to_tensors(text_of(text))) for text in (kept, kept[:20])]
    features = SimpleNamespace(
        manifest=SimpleNamespace(stop_tokens=[]), part=lambda name: SimpleNamespace(shards=shards)
    )
    module: Any = SimpleNamespace(
        features=features, cost=cost, trainer=SimpleNamespace(global_rank=0, world_size=1),
        make_lengths=lambda: lambda trace: Listed([3, 0, 8, 1]),
    )  # fmt: skip
    drafts = [drafts_of(text, [3, 0, 8, 1]) for text in (kept, kept[:20])]
    seconds = sum(cost.round(k) for rounds in drafts for k in rounds)
    expected = (len(kept) - 1 + 19) * cost.round(0) / seconds
    assert PredictorModule.simulated_speedup(module) == pytest.approx(expected)
