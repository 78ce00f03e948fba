"""The sampling against transformers' own logits processors, and its edges."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.controllers.sampling import SamplingParams
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.1, 3.0),
    top_k=st.one_of(st.none(), st.integers(1, 40)),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
)
def test_same_distribution_as_transformers(seed: int, temperature: float, top_k: int | None, top_p: float) -> None:
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k is not None:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    expected = processors(torch.zeros(3, 1, dtype=torch.long), logits.clone()).softmax(-1)
    found = SamplingParams(temperature, top_k, top_p)(logits)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_zero_temperature_is_the_point_mass_on_the_argmax() -> None:
    p = SamplingParams(0.0, None)(torch.tensor([[0.1, 2.0, -1.0]]))
    assert p.tolist() == [[0.0, 1.0, 0.0]]


def test_half_precision_logits_give_float32_probabilities() -> None:
    assert SamplingParams()(torch.randn(60).to(torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(0.0), SamplingParams(1.0, None), SamplingParams(1.0, 2), SamplingParams(1.0, None, 0.5)]
)
def test_broken_logits_are_an_error(bad: float, sampling: SamplingParams) -> None:
    with pytest.raises(InputError, match="NaN or infinite"):
        sampling(torch.tensor([0.0, bad, 1.0]))


def test_masked_tokens_are_no_error() -> None:
    assert SamplingParams(1.0, None)(torch.tensor([0.0, -torch.inf, 0.0])).tolist() == [0.5, 0.0, 0.5]
