"""Rules that learn while decoding, without training: formulas, what they share, exact distributions, seeds."""

import math
from collections.abc import Callable
from copy import copy, deepcopy
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.controllers.length import (
    MAX_DRAFT,
    AdaptiveLength,
    LengthController,
    OnlineConfidence,
    names_rule,
    parse_rule,
    takes_cost,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.online_confidence import (
    POSITIONS,
    PRIOR_FIT,
    REFIT,
    AcceptanceFit,
    Evidence,
    refitted,
)
from specpilot.controllers.length.online_confidence_tree import OnlineConfidenceTree
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import RandomSource

from .drafts import small
from .enumeration import DEPTH, PROMPT, assert_same, output_distribution, target_distribution
from .steps import step
from .tiny import make

COST = CostModel(0.2, 1.0, 0.05)


def test_adaptive_length_by_its_formula() -> None:
    rule = AdaptiveLength(3)
    rule.start_text()
    mean, drafted = 2.0, []
    for accepted in [3, 3, 4, 5, 5, *[0] * 12]:
        assert rule.k == math.floor(mean + 0.5) + 1
        assert [rule.observe(step([1.0, 1.0], index=i)) for i in (rule.k - 1, rule.k)] == [True, False]
        drafted.append(rule.k)
        rule.end_round(rule.k, min(rule.k, accepted))
        mean += 0.2 * (min(drafted[-1], accepted) - mean)
    assert max(drafted) > 3
    assert rule.k == 1
    for _ in range(200):
        rule.end_round(rule.k, rule.k)
    assert rule.k == MAX_DRAFT
    rule.start_text()
    assert rule.k == 3


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 100), slope=st.floats(0.0, 2.0), shift=st.floats(-2.0, 2.0), certain=st.floats(0.0, 1.0))
def test_the_fit_is_the_minimum_of_its_objective(seed: int, slope: float, shift: float, certain: float) -> None:
    """Also where many confidences are near 1 and mean little, as at temperature 1: a whole Newton step overshoots."""
    rng = Random(seed)
    seen: list[tuple[int, Evidence, bool]] = []
    for _ in range(500):
        position, logit = rng.randint(1, 3), 9.2 if rng.random() < certain else rng.gauss(0.5, 1.5)
        agrees, matches, share = rng.randint(0, 4), 4, rng.random()
        probability = 1 / (1 + math.exp(-slope * logit - share - shift * (position == 2)))
        seen.append((position, (logit, agrees, matches, share), rng.random() < probability))
    found = torch.tensor(refitted(refitted(PRIOR_FIT, seen), seen), dtype=torch.float64)

    def objective(parameters: torch.Tensor) -> torch.Tensor:
        omega, beta = parameters[:4], parameters[3:]
        x = torch.tensor([evidence for _, evidence, _ in seen], dtype=torch.float64)
        z = x @ omega + beta[[position for position, *_ in seen]]
        labels = torch.tensor([float(kept) for *_, kept in seen], dtype=torch.float64)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, labels, reduction="sum")
        return loss + 0.5 * (parameters - torch.tensor(PRIOR_FIT, dtype=torch.float64)).square().sum()

    found.requires_grad_(True)
    (gradient,) = torch.autograd.grad(objective(found), found)
    assert float(gradient.abs().max()) < 1e-5
    assert not found[7:].any()  # nothing was seen there


def test_a_fit_comes_every_hundred_tokens_and_is_bounded() -> None:
    fit = AcceptanceFit()
    assert fit.probability(1, (0.7, 2, 3, 0.5)) == pytest.approx(1 / (1 + math.exp(-0.7)))
    for n in range(1, 2 * REFIT + 1):
        before = fit.parameters
        fit.add(1 + n % 12, (2.0, 0, 0, 0.0), False)
        assert (fit.parameters is before) == (n % REFIT != 0)
    assert fit.probability(1, (2.0, 0, 0, 0.0)) < 0.2
    assert fit.mean(30) == fit.mean(POSITIONS) < 0.5
    for n in range(20 * REFIT):
        fit.add(1, (9.0, n % 3, 3, 0.5), n % 2 == 0)
    assert fit.probability(1, (9.0, 1, 3, 0.5)) == pytest.approx(0.5, abs=0.05)


def test_confident_drafts_go_on_until_they_are_rejected() -> None:
    rule = OnlineConfidence(cost=COST)
    sure, unsure = [9.0, 1.0], [1.1, 1.0]
    rule.start_text()
    assert rule.start_round()
    assert rule.observe(step(sure))
    assert not rule.observe(step(unsure, index=2))
    for _ in range(200):  # confidence turns out to mean nothing
        if rule.start_round():
            rule.observe(step(sure))
            rule.end_round(1, 0)
    rule.start_text()
    started = [rule.start_round() for _ in range(20)]
    assert not started[0]
    assert started.count(True) == 1  # a probe
    other = copy(rule)
    other.start_text()
    assert other.fit is rule.fit
    assert other.rate is not rule.rate
    assert OnlineConfidence(0.3).observe(step(sure))
    assert not OnlineConfidence(0.95).observe(step(sure))


def test_trees_teach_the_confidence_of_first_children() -> None:
    chain = OnlineConfidence(cost=COST)
    tree = OnlineConfidenceTree(chain)
    tree.start_text()
    first, second = tree.visit(step([3.0, 1.0])), tree.visit(step([2.0, 1.0], index=2))
    assert first.accept == pytest.approx(0.75)
    first.kept, second.kept = 0, 1  # a sibling
    tree.end_tree([-1, 0, 0], [first, second])
    seen = [(position, evidence[0], kept) for position, evidence, kept in chain.fit.seen]
    assert seen == [(1, pytest.approx(math.log(3)), True), (2, pytest.approx(math.log(2)), False)]


def taught(make_rule: Callable[[], LengthController], tree: str | None = None) -> LengthController:
    """A rule that has seen texts: its fit, rewards and averages are not those of the beginning."""
    rule = make_rule()
    decoder = SpeculativeDecoder(make(seed=0), make(seed=0, layers=1), length=rule, tree=tree)
    for seed in range(6):
        decoder.generate([1, 2, 3], max_new_tokens=60, seed=seed)
    return rule


RULES: dict[str, Callable[[], LengthController]] = {
    "adaptive-length": AdaptiveLength,
    "online-confidence": lambda: OnlineConfidence(cost=COST),
    "online-confidence:0.4": lambda: OnlineConfidence(0.4),
}


models_of = cache(small)  # what they remember is computed once


@pytest.mark.parametrize(("name", "tree"), [*((name, None) for name in RULES), ("online-confidence", "auto")])
@pytest.mark.parametrize("sampling", [SamplingParams(1.0, 2), SamplingParams(0.0)])
def test_output_distribution(name: str, tree: str | None, sampling: SamplingParams) -> None:
    """From the beginning and after texts, alone and beside a text that teaches the rule meanwhile."""
    target, draft = models_of("model", 4, Path())
    expected = target_distribution(target, sampling)
    for first in (RULES[name](), taught(RULES[name], tree)):

        def run(rng: RandomSource, first: LengthController = first) -> tuple[int, ...]:
            # What a text leaves behind must not reach the next outcome.
            decoder = SpeculativeDecoder(target, draft, length=deepcopy(first), tree=tree)
            scheduler = decoder.scheduler
            other = decoder.new_request([2, 1], sampling, 9, RandomSource(5))
            request = decoder.new_request(list(PROMPT), sampling, 5, rng)
            scheduler.submit([other])
            scheduler.step()
            scheduler.submit([request])
            while not request.finished and len(request.output.tokens) < DEPTH:
                scheduler.step()
            scheduler.cancel([other, request])
            return tuple(request.output.tokens[:DEPTH])

        assert_same(output_distribution(run), expected)


def test_by_name() -> None:
    assert parse_rule("adaptive-length:7").k == 7  # type: ignore[union-attr]
    assert vars(parse_rule("online-confidence:0.3"))["stop_below"] == 0.3
    assert vars(parse_rule("online-confidence", COST))["cost"] == COST
    names = ["adaptive-length", "online-confidence", "online-confidence:0.3", "4", "none", "tiny-head"]
    assert [names_rule(name) for name in names] == [True, True, True, True, True, False]
    assert [takes_cost(name) for name in names] == [False, True, False, False, False, True]
