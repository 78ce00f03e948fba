"""Top-p without top-k: only as many tokens are sorted as are needed, and the distribution is the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.controllers.nucleus import FLOORS, nucleus, sort_all
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.distribution import TokenDistribution
from specpilot.infer.random_source import RandomSource
from torch import Tensor

SIZE = 3000
FLAT = 0.05, 1.0, 2.5, 12.0  # spreads of logits: nearly all tokens are kept, or a few


def by_definition(logits: Tensor, top_p: float, temperature: float) -> Tensor:
    """(V,) tokens from the most probable on, as long as those before hold less than ``top_p``."""
    p = torch.softmax(logits.double() / temperature, -1)
    order = p.argsort(descending=True)
    before = p[order].cumsum(0) - p[order]
    kept = torch.zeros_like(p)
    kept[order[before < top_p]] = p[order[before < top_p]]
    return kept / kept.sum()


def rows(seed: int, spreads: list[float]) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randn(SIZE, generator=generator) * spread for spread in spreads])


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    spreads=st.lists(st.sampled_from(FLAT), min_size=1, max_size=4),
    top_p=st.sampled_from([0.1, 0.6, 0.95, 0.999]),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
)
def test_the_distribution_is_that_of_the_definition(
    seed: int, spreads: list[float], top_p: float, temperature: float
) -> None:
    logits = rows(seed, spreads)
    found = SamplingParams(temperature, None, top_p)(logits)
    for own, row in zip(found, logits, strict=True):
        expected = by_definition(row, top_p, temperature)
        assert (own.double() - expected).abs().sum() < 2e-3  # a token at the edge may be kept or not by rounding
        assert abs(int((own > 0).sum()) - int((expected > 0).sum())) <= 1


def test_a_row_does_not_depend_on_the_others() -> None:
    """Not even by rounding, whatever the number of tokens that are sorted for each."""
    sampling = SamplingParams(1.0, None, 0.999)
    logits = rows(3, [12.0, 6.0, 2.5, 0.05])
    alone = [sampling.top(row.unsqueeze(0)) for row in logits]
    widths = [tokens.shape[1] for _, tokens in alone if tokens is not None]
    high, low = [(torch.softmax(logits, -1) >= floor).sum(-1).tolist() for floor in FLOORS]
    assert widths[0] < high[0]
    assert high[1] <= widths[1] < low[1]
    assert low[2] <= widths[2] < widths[3] < SIZE  # tokens that are left out are not returned
    together = sampling(logits)
    for row, whole in enumerate(together):
        assert torch.equal(sampling(logits[row : row + 1])[0], whole)
    assert torch.equal(sampling(logits.reshape(2, 2, SIZE)), together.reshape(2, 2, SIZE))


@pytest.mark.parametrize("top_p", [0.1, 0.95, 0.999])
def test_devices_that_sort_whole_rows_keep_the_same_tokens(top_p: float) -> None:
    probabilities = torch.softmax(rows(5, list(FLAT)).double(), -1)
    dense = [
        torch.zeros_like(probabilities).scatter_(1, tokens, values)
        for values, tokens in (nucleus(probabilities, top_p), sort_all(probabilities, top_p))
    ]
    assert torch.allclose(*dense, rtol=0, atol=1e-12)


def test_filling_up_leaves_every_probability() -> None:
    """A token appears twice in a row only where its probability is zero."""
    probabilities, tokens = SamplingParams(1.0, None, 0.95).top(rows(4, [12.0, 0.05, 2.5]))
    assert tokens is not None
    for own, among in zip(probabilities, tokens, strict=True):
        kept = among[own > 0]
        assert len(kept.unique()) == len(kept)
        assert not bool(torch.isin(among[own == 0], kept).any())
    assert torch.allclose(probabilities.sum(-1), torch.ones(3))


def test_logits_that_are_no_numbers_are_found() -> None:
    probabilities, _ = SamplingParams(1.0, None, 0.9).top(torch.full((1, SIZE), torch.nan))
    assert bool(probabilities.isnan().any())


@pytest.mark.parametrize("seed", range(20))
def test_lists_and_tensors_draw_the_same_tokens(seed: int) -> None:
    """A row has lists if few candidates hold the probability of all rows beside it, and the text must not change."""
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
