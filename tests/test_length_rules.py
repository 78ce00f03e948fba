"""Rules without learning: each against its formula, and what they remember from round to round."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.specdec_head import AcceptanceHead
from specpilot.controllers.length import (
    MAX_DRAFT,
    Confidence,
    CumulativeConfidence,
    Entropy,
    Fallback,
    HeadPredictor,
    Heuristic,
    parse_rule,
)
from specpilot.controllers.sampling import SamplingParams

from .steps import step

probabilities = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


@settings(max_examples=100)
@given(weights=probabilities, threshold=st.floats(0, 1))
def test_confidence_and_entropy(weights: list[float], threshold: float) -> None:
    share = [w / sum(weights) for w in weights]
    entropy = -sum(s * math.log(s) for s in share)
    assert Confidence(threshold).observe(step(weights)) == (share[0] >= threshold) or share[0] == pytest.approx(
        threshold
    )
    bound = 1 - math.sqrt(0.2 * entropy)
    assert Entropy(threshold).observe(step(weights)) == (bound >= threshold) or bound == pytest.approx(threshold)


def test_greedy_rules_read_the_distribution_at_temperature_1() -> None:
    """The one at temperature 0 is a point mass."""
    greedy = step([3.0, 1.0], sampling=SamplingParams(0.0, None))
    assert greedy.probability == 1
    assert greedy.confidence() == pytest.approx(0.75)
    assert greedy.entropy() == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert step([1.0, 0.0]).entropy() == 0


def test_fallback_reads_the_most_probable_token() -> None:
    flat, peaked = [1.0, 1.0, 1.0], [1.0, 8.0, 1.0]
    assert [Fallback(0.6).observe(step(w)) for w in (flat, peaked)] == [False, True]
    assert [Fallback(0.6).observe(step(w, token=1, sampling=SamplingParams(0.0))) for w in (flat, peaked)] == [
        False,
        True,
    ]
    assert not Fallback(0.0).observe(step(peaked, index=10))


def test_cumulative_confidence_multiplies_and_forgets() -> None:
    rule = CumulativeConfidence(0.2)
    for _ in range(2):
        assert rule.start_round()
        assert [rule.observe(step([1.0, 1.0], index=i)) for i in (1, 2, 3)] == [True, True, False]


def test_heuristic_follows_what_was_accepted() -> None:
    rule = Heuristic(3)
    drafted = []
    for accepted_whole in [True, True, False, False, False, False, False, False, False] + [True] * 12:
        drafted.append(rule.k)
        assert [rule.observe(step([1.0, 1.0], index=i)) for i in range(1, rule.k + 1)] == [True] * (rule.k - 1) + [
            False
        ]
        rule.end_round(rule.k, rule.k if accepted_whole else rule.k - 1)
    assert drafted[:10] == [3, 5, 7, 6, 5, 4, 3, 2, 1, 1]
    assert drafted[-1] == MAX_DRAFT
    rule.start_text()
    assert rule.k == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Confidence(1.5), r"confidence:1\.5: the threshold must be in \[0, 1\]"),
        (lambda: Entropy(math.nan), "entropy:nan: the threshold must be a finite number up to 1"),
        (lambda: Entropy(0.5, -1), r"gamma=-1: must be a finite number ≥ 0"),
        (lambda: Heuristic(0), "heuristic:0: the first draft length must be a whole number from 1 to 20"),
        (lambda: Heuristic(2.5), r"heuristic:2\.5: the first draft length must be a whole number"),
        (lambda: Heuristic(math.inf), "heuristic:inf: the first draft length must be a whole number"),
        *(
            (partial(parse_rule, spec), message)
            for spec, message in (
                ("online-confidence", "length='online-confidence': give either a cost model"),
                ("online-confidence:2", "online-confidence:2.0: the threshold must be in"),
                ("adaptive-length:0", "adaptive-length:0: the first draft length must be a whole number from 1 to 20"),
                ("adaptive-length:2.5", "adaptive-length:2.5: the first draft length must be a whole number"),
                ("adaptive-length:x", "give the rule's number, as in 'adaptive-length:4'"),
            )
        ),
    ],
)
def test_refusals(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_head_in_serving_is_its_module(depth: int, dtype: torch.dtype) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(depth)
        head = AcceptanceHead(16, depth).to(dtype)
        states = torch.randn(20, 16) * torch.logspace(-2, 4, 20)[:, None]
    rule = HeadPredictor(head)
    for state in states:
        assert rule.probability(state) == pytest.approx(float(head.probability(state)), rel=1e-4, abs=1e-30)
