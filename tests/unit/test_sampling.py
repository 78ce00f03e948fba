"""Sampling: distributions compared with transformers' processors and with their definitions, and draws."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.controllers.sampling import SamplingParams
from specpilot.controllers.truncation import largest, sort_rows, top_k
from specpilot.infer.core import TokenDistribution
from specpilot.infer.random_source import RandomSource, sample_seed
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

SIZE = 3000
SIZES = [39_999, 3 << 14, 64_001]  # a short row, a long one of equal blocks, and a long one that blocks do not divide
SPREADS = [0.05, 1.0, 3.0, 12.0]  # of logits: nearly all tokens are kept, or a few


def rows(seed: int, spreads: list[float]) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randn(SIZE, generator=generator) * spread for spread in spreads])


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([30, SIZE]),  # of the longer rows few tokens are sorted for top-p
    spread=st.sampled_from(SPREADS),
    temperature=st.floats(0.1, 3.0),
    top_k=st.one_of(st.none(), st.integers(1, 40)),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.999)),
)
def test_same_distribution_as_transformers(
    seed: int, size: int, spread: float, temperature: float, top_k: int | None, top_p: float
) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k is not None:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    expected = processors(torch.zeros(3, 1, dtype=torch.long), logits.clone()).softmax(-1)
    probabilities = SamplingParams(temperature, top_k, top_p)(logits)
    torch.testing.assert_close(probabilities, expected, rtol=1e-9, atol=1e-12)
    if top_k is None:  # devices that sort whole rows keep the same tokens
        values, tokens = sort_rows(torch.softmax(logits / temperature, -1), top_p)
        torch.testing.assert_close(
            torch.zeros_like(logits).scatter_(1, tokens, values), probabilities, rtol=1e-9, atol=1e-12
        )


def test_settings_are_plain_numbers() -> None:
    sampling = SamplingParams(Fraction(1, 2), np.int64(5), np.float32(0.5))  # type: ignore[arg-type]
    assert json.dumps(sampling.to_dict()) == '{"temperature": 0.5, "top_k": 5, "top_p": 0.5}'


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(0.0), SamplingParams(1.0, None), SamplingParams(1.0, 2), SamplingParams(1.0, None, 0.5)]
)
def test_broken_logits_are_an_error(bad: float, sampling: SamplingParams) -> None:
    for size in (3, SIZE, SIZES[1]):  # of which few are sorted for top-p, or compared for top-k
        with pytest.raises(InputError, match="NaN or infinite"):
            sampling(torch.zeros(size).index_fill(0, torch.tensor([1]), bad))
    assert sampling(torch.tensor([0.0, -torch.inf, 1.0]))[1] == 0  # a token that is excluded


# The random source in production: inverse-CDF draws, alike from lists and tensors, that depend on the seed alone


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
    assert fixed(uniform).accept(weights[:1]) == [uniform < weights[0]]
    for bad in (math.nan, math.inf):
        for draw in (RandomSource(0).pick, lambda row: RandomSource(0).sample(torch.tensor(row))):
            with pytest.raises(InputError, match="NaN or infinite"):
                draw([1.0, bad])


def test_seeds_share_nothing() -> None:
    state = torch.get_rng_state()
    seeds = {sample_seed(seed, i) for seed in range(50) for i in range(50)}
    assert len(seeds) == len({RandomSource(seed).uniform() for seed in seeds}) == 2500
    assert torch.equal(torch.get_rng_state(), state)


# The largest logits are those that ``torch.topk`` finds


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SIZES), st.integers(1, 300), st.integers(1, 4), st.booleans(), st.integers(0, 2**31))
def test_as_torch_finds_them(size: int, k: int, rows: int, ties: bool, seed: int) -> None:
    """The numbers may be equal, and the largest may be neighbours, excluded tokens, or in cut-off columns."""
    logits = torch.randn(2, rows, size + 7, generator=torch.Generator().manual_seed(seed))[..., :size]
    logits[0, 0, 5 : 5 + 128] += 8
    logits[1, 0, 10:] = -math.inf
    if ties:
        logits = logits.bfloat16().float()
    values, indices = top_k(logits, k)
    assert torch.equal(values, logits.topk(k).values)
    assert torch.equal(logits.gather(-1, indices), values)
    assert all(len(set(row)) == k for row in indices.flatten(0, 1).tolist())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 4), st.sampled_from([0.0, -math.inf, math.nan]), st.integers(0, 2**31))
def test_the_largest_is_the_first_one(size: int, rows: int, other: float, seed: int) -> None:
    logits = torch.randint(5, (2, rows, size), generator=torch.Generator().manual_seed(seed)).float()
    logits[1, 0, size // 2] = other
    places = largest(logits)
    assert places.shape == (2, rows, 1)
    for row, (place,) in zip(logits.flatten(0, 1).tolist(), places.flatten(0, 1).tolist(), strict=True):
        broken = [math.isnan(number) for number in row]
        assert place == (broken.index(True) if any(broken) else row.index(max(row)))
    assert torch.equal(largest(logits.clone().requires_grad_()), places)


WIDE = torch.randn(4, 3 << 14, generator=torch.Generator().manual_seed(1)).bfloat16()  # with equal numbers


@pytest.mark.parametrize(
    ("sampling", "logits"),
    [(SamplingParams(1.0, None, 0.999), rows(3, [12.0, 6.0, 2.5, 0.05])), (SamplingParams(1.0, 50), WIDE)],
    ids=["top-p", "top-k"],
)
def test_a_row_does_not_depend_on_the_others(sampling: SamplingParams, logits: Tensor) -> None:
    """Other rows do not even change the rounding, for any number of sorted tokens."""
    together = sampling(logits)
    for row, whole in enumerate(together):
        assert torch.equal(sampling(logits[row : row + 1])[0], whole)
    assert torch.equal(sampling(logits.reshape(2, 2, -1)), together.reshape(2, 2, -1))


@pytest.mark.parametrize("seed", range(20))
def test_lists_and_tensors_draw_the_same_tokens(seed: int) -> None:
    """Other rows decide whether a distribution has lists, and this must not change the text."""
    sampling = SamplingParams(1.0, None, 0.9)
    p, q, flat = rows(seed, [6.0, 6.0, 0.05])
    few_p, few_q = (TokenDistribution.from_logits(sampling, row.unsqueeze(0)) for row in (p, q))
    many_p, many_q = (TokenDistribution.from_logits(sampling, torch.stack([row, flat])) for row in (p, q))
    assert few_p.lists is not None
    assert many_p.lists is None
    assert few_p.sample(0, RandomSource(seed)) == many_p.sample(0, RandomSource(seed))
    expected = few_p.sample_beyond(0, few_q, RandomSource(seed))
    assert many_p.sample_beyond(0, few_q, RandomSource(seed)) == expected
    assert few_p.sample_beyond(0, many_q, RandomSource(seed)) == expected
