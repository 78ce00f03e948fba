"""The random source in production: inverse-CDF draws, alike from lists and tensors, that depend on the seed alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.infer.random_source import RandomSource

weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 10.0)), min_size=1, max_size=8).filter(any)


def fixed(uniform: float) -> RandomSource:
    rng = RandomSource(0)
    rng.uniform = lambda: uniform
    return rng


@settings(max_examples=300)
@given(weights=weights, uniform=st.floats(0, 1, exclude_max=True))
def test_draws_follow_the_cumulative_sum(weights: list[float], uniform: float) -> None:
    drawn = fixed(uniform).pick(weights)
    assert weights[drawn] > 0
    point = uniform * math.fsum(weights)
    assert math.fsum(weights[:drawn]) <= point * (1 + 1e-12) + 1e-300
    assert point <= math.fsum(weights[: drawn + 1]) * (1 + 1e-12)
    assert fixed(uniform).sample(torch.tensor(weights, dtype=torch.float64)) == drawn


def test_every_token_has_its_share() -> None:
    grid = [(i + 0.5) / 1000 for i in range(1000)]
    drawn = [fixed(u).pick([1.0, 0.0, 3.0]) for u in grid]
    assert [drawn.count(token) for token in range(3)] == [250, 0, 750]


@settings(max_examples=100)
@given(probability=st.floats(0, 1.5), uniform=st.floats(0, 1, exclude_max=True))
def test_acceptance(probability: float, uniform: float) -> None:
    assert fixed(uniform).accept([probability]) == [uniform < probability]


def test_seeds() -> None:
    state = torch.get_rng_state()
    sources = [RandomSource(seed) for seed in (1, 1, 2)]
    first, again, other = ([rng.pick([1.0] * 50) for _ in range(20)] for rng in sources)
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [1.0, math.inf]])
def test_broken_weights_are_an_error(bad: list[float]) -> None:
    with pytest.raises(InputError, match="NaN or infinite"):
        RandomSource(0).pick(bad)
    with pytest.raises(InputError, match="NaN or infinite"):
        RandomSource(0).sample(torch.tensor(bad))
