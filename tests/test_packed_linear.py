"""Products with reordered weights against plain ones, on both sides of the size from which they are taken."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.infer.models import linear
from specpilot.infer.models.linear import FEW, PackedLinear


@settings(max_examples=60)
@given(
    rows=st.integers(1, 300),
    inputs=st.integers(1, 400),
    outputs=st.integers(1, 900),
    contiguous=st.booleans(),
    biased=st.booleans(),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("plain_rows", [0, 3])
def test_equals_the_plain_product(
    plain_rows: int, dtype: torch.dtype, rows: int, inputs: int, outputs: int, contiguous: bool, biased: bool
) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    x = torch.randn(rows, inputs, generator=generator).to(dtype)
    if not contiguous:
        x = torch.cat([x, x], -1)[..., :inputs]
    bias = torch.randn(outputs, generator=generator).to(dtype) if biased else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    # The textbook bound of a sum of so many rounded products, in any order.
    size = F.linear(x.double().abs(), weight.double().abs(), None if bias is None else bias.double().abs())
    bound = (inputs + biased) * torch.finfo(dtype).eps * size
    with patch.multiple(linear, PLAIN_ROWS=plain_rows, FULL_ROWS=4, LARGE=FEW):
        got = PackedLinear(weight, bias)(x)
    assert got.dtype == dtype
    assert bool(((got.double() - expected).abs() <= bound).all())


def test_large_weights_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain copy beside the packed one is for small products only, unless few rows are better off with it."""
    monkeypatch.setattr(linear, "PLAIN_ROWS", 0)
    weight = torch.randn(FEW // 100, 100)
    assert PackedLinear(weight).plain is None
    assert PackedLinear(weight[1:]).plain is not None
    assert PackedLinear(weight.double()).plain is not None
    monkeypatch.setattr(linear, "PLAIN_ROWS", 3)
    assert PackedLinear(weight).plain is not None
    assert PackedLinear(weight.bfloat16()).plain is None


@pytest.mark.parametrize("full_rows", [1, 4])
def test_inputs_of_all_lengths_meet_few_sizes(full_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those between a full number of rows and a step are met as they are."""
    monkeypatch.setattr(linear, "PLAIN_ROWS", 0)
    monkeypatch.setattr(linear, "FULL_ROWS", full_rows)
    monkeypatch.setattr(linear, "LARGE", FEW)
    layer = PackedLinear(torch.randn(FEW // 100, 100))
    assert layer.packed is not None
    met: set[int] = set()
    product = layer.product

    def counting(x: torch.Tensor, *rest: object) -> torch.Tensor:
        met.add(len(x))
        return product(x, *rest)

    layer.product = counting
    for rows in range(1, 400):
        assert len(layer(torch.ones(rows, 100))) == rows
    assert met == {*range(full_rows, 17), *range(32, 401, 16)}
