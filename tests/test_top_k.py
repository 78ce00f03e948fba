"""The largest logits are those that ``torch.topk`` finds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.controllers.sampling import SamplingParams
from specpilot.controllers.top_k import BLOCK, FEWEST, largest, top_k

SIZES = [FEWEST - 1, BLOCK * 768, BLOCK * 1000 + 1]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SIZES), st.integers(1, 300), st.integers(1, 4), st.booleans(), st.integers(0, 2**31))
def test_as_torch_finds_them(size: int, k: int, rows: int, ties: bool, seed: int) -> None:
    """Also with equal numbers, and where the largest stand side by side."""
    logits = torch.randn(2, rows, size, generator=torch.Generator().manual_seed(seed))
    logits[0, 0, 5 : 5 + 2 * BLOCK] += 8
    if ties:
        logits = logits.bfloat16().float()
    values, indices = top_k(logits, k)
    assert torch.equal(values, logits.topk(k).values)
    assert torch.equal(logits.gather(-1, indices), values)
    assert all(len(set(row)) == k for row in indices.flatten(0, 1).tolist())


@pytest.mark.parametrize("size", SIZES)
def test_padded_masked_and_broken_rows(size: int) -> None:
    """Columns that are cut off, excluded tokens, and NaN, which must not be lost."""
    padded = torch.randn(3, size + 7, generator=torch.Generator().manual_seed(0))
    logits = padded[:, :size]
    logits[1, 10:] = -math.inf
    logits[2, size // 2] = math.nan
    values, indices = top_k(logits, 50)
    assert torch.equal(values[:2], logits[:2].topk(50).values)
    assert indices[1, :10].sort().values.tolist() == list(range(10))
    assert math.isnan(values[2, 0])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 4), st.sampled_from([0.0, -math.inf, math.nan]), st.integers(0, 2**31))
def test_the_largest_is_the_first_one(size: int, rows: int, other: float, seed: int) -> None:
    logits = torch.randint(5, (2, rows, size), generator=torch.Generator().manual_seed(seed)).float()
    logits[1, 0, size // 2] = other
    found = largest(logits)
    assert found.shape == (2, rows, 1)
    for row, (place,) in zip(logits.flatten(0, 1).tolist(), found.flatten(0, 1).tolist(), strict=True):
        broken = [math.isnan(number) for number in row]
        assert place == (broken.index(True) if any(broken) else row.index(max(row)))
    assert torch.equal(largest(logits.clone().requires_grad_()), found)


def test_a_row_is_the_same_in_any_batch() -> None:
    """Equal numbers at the end of the kept ones, too."""
    logits = torch.randn(5, BLOCK * 768, generator=torch.Generator().manual_seed(1)).bfloat16()
    together = SamplingParams(1.0, 50).top(logits)
    for row in range(5):
        alone = SamplingParams(1.0, 50).top(logits[row : row + 1])
        for part, whole in zip(alone, together, strict=True):
            assert part is not None
            assert whole is not None
            assert torch.equal(part[0], whole[row])
