"""Drafts in another precision than the target's, of 16, 8 and 4 bits: the products, loading by name, refusals."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.controllers.router import SingleArm
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.models import CausalLM, LanguageModel, language_model, linear
from specpilot.infer.models.linear import (
    GROUP,
    INT4_ROWS,
    INT8_ROWS,
    OUTPUTS,
    QUANTIZATIONS,
    Int4Linear,
    Int8Linear,
    PackedForward,
)
from torch import Tensor

from .tiny import make

ROWS = st.sampled_from([1, 2, INT8_ROWS, INT8_ROWS + 1, INT4_ROWS, INT4_ROWS + 1, 40])


def random_weight(outputs: int, inputs: int, seed: int) -> Tensor:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    weight[0] = 0.0
    weight[1] = 0.3  # groups of equal weights
    return weight.bfloat16()


def rounded(layer: Int8Linear | Int4Linear, inputs: int) -> Tensor:
    """(out, in) the weights of ``layer``, from its products with unit vectors, one at a time."""
    return torch.cat([layer(unit) for unit in torch.eye(inputs).bfloat16().split(1)]).t().float()


@settings(max_examples=30)
@given(groups=st.integers(1, 6), outputs=st.integers(1, 9), seed=st.integers(0, 9))
@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
def test_weights_are_rounded_to_the_nearest(
    kind: type[Int8Linear | Int4Linear], groups: int, outputs: int, seed: int
) -> None:
    weight = random_weight(OUTPUTS * outputs, GROUP * groups, seed)
    found, exact = rounded(kind(weight), GROUP * groups), weight.float()
    largest = exact.abs().amax(1, keepdim=True)
    if kind is Int8Linear:
        half_step = largest / 127 / 2
    else:
        parts = exact.unflatten(1, (-1, GROUP))
        half_step = ((parts.amax(2) - parts.amin(2)) / 15 / 2).repeat_interleave(GROUP, 1)
    # The scale, the offset and the result are in bfloat16.
    slack = 1.5 * torch.finfo(torch.bfloat16).eps * largest
    assert bool(((found - exact).abs() <= half_step + slack).all())


@settings(max_examples=30)
@given(
    rows=ROWS, groups=st.integers(1, 6), outputs=st.integers(1, 9), seed=st.integers(0, 9), cut=st.booleans(),
    biased=st.booleans(),
)  # fmt: skip
@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
def test_products_of_all_numbers_of_rows_are_with_the_same_weights(
    kind: type[Int8Linear | Int4Linear], rows: int, groups: int, outputs: int, seed: int, cut: bool, biased: bool
) -> None:
    inputs = GROUP * groups
    bias = torch.arange(OUTPUTS * outputs).bfloat16() if biased else None
    layer = kind(random_weight(OUTPUTS * outputs, inputs, seed), bias)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)).bfloat16()
    if cut:
        x = torch.cat([x, x], -1)[:, :inputs]  # not contiguous
    found, weight = layer(x), rounded(kind(random_weight(OUTPUTS * outputs, inputs, seed)), inputs)
    assert found.dtype == torch.bfloat16
    shift = torch.zeros(OUTPUTS * outputs) if bias is None else bias.float()
    bound = 2 * torch.finfo(torch.bfloat16).eps * F.linear(x.float().abs(), weight.abs(), shift)
    assert bool(((found.float() - F.linear(x.float(), weight, shift)).abs() <= bound + 1e-6).all())


def test_layers_of_any_architecture_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a T5."""
    monkeypatch.setattr(linear, "SMALLEST", 1)
    decoder = SpeculativeDecoder.from_pretrained("tiny-t5", "tiny-t5-draft-sql", draft_dtype="int4", length=3)
    (draft,) = decoder.drafts
    assert isinstance(draft, CausalLM)
    products = [
        module.forward.product for module in draft.packed.modules() if isinstance(module.forward, PackedForward)
    ]
    assert {type(product) for product in products} == {Int4Linear, Int8Linear}
    assert isinstance(draft.packed.get_output_embeddings().forward.product, Int8Linear)
    found = decoder.generate("how many heads are older than 56 | head: id, name, age", temperature=0, max_new_tokens=24)
    plain = SpeculativeDecoder.from_pretrained("tiny-t5", None)
    assert (
        found.tokens
        == plain.generate(
            "how many heads are older than 56 | head: id, name, age", temperature=0, max_new_tokens=24
        ).tokens
    )
    assert found.stats.n_accepted > 0


def kinds(model: LanguageModel) -> tuple[type, type]:
    assert isinstance(model, CausalLM)
    assert model.lean is not None
    return type(model.lean.layers[0].down), type(model.lean.head)


@pytest.mark.parametrize("name", ["bfloat16", *QUANTIZATIONS])
def test_loading_by_name(name: str) -> None:
    """One draft, several of a tree, and a router's arm; a trained controller takes a draft of any precision."""
    ways: list[dict[str, Any]] = [
        {"draft": "tiny-draft", "length": "tiny-lag-free", "cost": 0.2},
        {"draft": ["tiny-draft"] * 2, "tree": "2x1", "verifier": "spec-infer"},
        {"draft": ["tiny-draft", "exit:2"], "router": SingleArm(0, 2)},
    ]
    for way in ways:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            decoder = SpeculativeDecoder.from_pretrained("tiny", **way, draft_dtype=name)
        assert decoder.target.model.dtype == torch.float32
        for draft in decoder.drafts:
            assert draft.model.dtype == torch.bfloat16
            assert name == "bfloat16" or kinds(draft) == ({"int8": Int8Linear, "int4": Int4Linear}[name], Int8Linear)
        assert decoder.generate("What is 3 and 4?", max_new_tokens=24).stats.n_accepted > 0


def test_what_cannot_be_rounded_is_refused() -> None:
    narrow = make(hidden=16).to(torch.bfloat16)
    with pytest.raises(InputError, match="draft_dtype='int4': takes weights with a multiple of 32 inputs"):
        language_model(narrow, quantization="int4")
    for model, reason in (
        (make("gpt2").to(torch.bfloat16), "its linear layers have fewer than 150000 weights each"),
        (make("llama"), "they are in float32, not bfloat16"),
        (make("llama").to(torch.bfloat16).to("meta"), "it is not on the CPU"),
    ):
        refused = f"draft_dtype='int8': the weights of this draft cannot be rounded, since {reason}"
        with pytest.raises(InputError, match=refused):
            language_model(model, quantization="int8")
