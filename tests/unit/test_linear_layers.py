"""Linear layers with reordered or rounded weights: their products, and models of any architecture that have them."""

import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models import CausalLM, LanguageModel, language_model, linear
from specpilot.models.forwards import Lean
from specpilot.models.linear import Int4Linear, Int8Linear, PackedForward, PackedLinear, pack
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from experiments.router.single_arm import SingleArm

from ..helpers.architectures import ENCODER_DECODERS, MAKERS, target_of
from ..helpers.greedy import each
from ..helpers.tiny import make


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
    with patch.multiple(linear, PLAIN_ROWS=plain_rows, FULL_ROWS=4, LARGE=linear.FEW):
        layer = PackedLinear(weight, bias)
    row_counts: list[int] = []  # numbers of rows for which oneDNN generates code
    if layer.packed is not None:
        product = layer.product
        layer.product = lambda x, *arguments: row_counts.append(len(x)) or product(x, *arguments)
    actual = layer(x)
    assert (actual.dtype, len(actual)) == (dtype, rows)
    assert bool(((actual.double() - expected).abs() <= bound).all())
    assert all(n <= linear.STEP or n % linear.STEP == 0 for n in row_counts)


# Models of transformers whose linear layers compute with reordered weights


TEXT = [5, 9, 3, 7, 7, 1, 8, 2, 40, 11, 3, 9, 30, 2, 2, 17, 6, 21, 5, 50]


@pytest.fixture
def every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reorder weights of any size for products of any number of rows, also on Intel's processors."""
    monkeypatch.setattr(linear, "SMALLEST", 1)
    monkeypatch.setattr(linear, "FEW", 0)
    monkeypatch.setattr(linear, "PLAIN_ROWS", 0)


def reorders(dtype: torch.dtype) -> bool:
    """Return true if this processor has products with reordered weights: in bfloat16 only with AVX-512 or AMX."""
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed_layers(model: PreTrainedModel) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(vars(module).get("forward"), PackedForward)]


@pytest.mark.usefixtures("every_layer")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each([*MAKERS, *ENCODER_DECODERS])
def test_logits_are_those_of_the_model(name: str, dtype: torch.dtype) -> None:
    model = target_of(name).to(dtype=dtype)
    packed = pack(model)
    layers = [module for module in model.modules() if type(module) in (nn.Linear, Conv1D)]
    assert layers
    assert len(packed_layers(packed)) == (len(layers) if reorders(dtype) else 0)
    assert not packed_layers(model)
    inputs = {"input_ids": torch.tensor([TEXT])}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.inference_mode():
        packed_logits, expected = (each_model(**inputs).logits.float() for each_model in (packed, model))
        exact = target_of(name).to(torch.bfloat16).float()(**inputs).logits if dtype == torch.bfloat16 else expected
    # In float32 the same; in bfloat16 as far from float32 as the model's own forward is, up to chance.
    error, plain_error = (float((logits - exact).square().mean().sqrt()) for logits in (packed_logits, expected))
    assert error <= 1.5 * plain_error + 1e-5 * float(exact.square().mean().sqrt())


@pytest.mark.usefixtures("every_layer")
def test_gradients_and_other_dtypes_take_the_layers_own_forward() -> None:
    model = make("gpt2").requires_grad_(True)
    packed = pack(model)
    packed(input_ids=torch.tensor([TEXT])).logits.sum().backward()
    layer = model.transformer.h[0].mlp.c_fc
    assert layer.weight.grad is not None
    with torch.inference_mode():
        x = torch.ones(1, 1, 32, dtype=torch.bfloat16)
        assert packed.transformer.h[0].mlp.c_fc.forward.product is not None
        with pytest.raises(RuntimeError):  # as the layer itself
            packed.transformer.h[0].mlp.c_fc(x)


# Drafts in another precision than the target's


ROWS = st.sampled_from([1, 2, linear.INT8_ROWS, linear.INT8_ROWS + 1, linear.INT4_ROWS, linear.INT4_ROWS + 1, 40])


@settings(max_examples=40)
@given(
    rows=ROWS, groups=st.integers(1, 6), outputs=st.integers(1, 9), seed=st.integers(0, 9), cut=st.booleans(),
    biased=st.booleans(),
)  # fmt: skip
@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
def test_weights_are_rounded_to_the_nearest_for_products_of_all_numbers_of_rows(
    kind: type[Int8Linear | Int4Linear], rows: int, groups: int, outputs: int, seed: int, cut: bool, biased: bool
) -> None:
    inputs = linear.GROUP * groups
    exact = torch.randn(linear.OUTPUTS * outputs, inputs, generator=torch.Generator().manual_seed(seed))
    exact[0] = 0.0
    exact[1] = 0.3  # groups of equal weights
    exact = exact.bfloat16().float()
    bias = torch.arange(linear.OUTPUTS * outputs).bfloat16()
    plain, layer = kind(exact.bfloat16()), kind(exact.bfloat16(), bias if biased else None)
    weight = (
        torch.cat([plain(unit) for unit in torch.eye(inputs).bfloat16().split(1)]).t().float()
    )  # what it computes with
    largest = exact.abs().amax(1, keepdim=True)
    if kind is Int8Linear:
        half_step = largest / 127 / 2
    else:
        parts = exact.unflatten(1, (-1, linear.GROUP))
        half_step = ((parts.amax(2) - parts.amin(2)) / 15 / 2).repeat_interleave(linear.GROUP, 1)
    # The scale, the offset and the result are in bfloat16; there is no offset in 8 bits.
    slack = 1.5 * torch.finfo(torch.bfloat16).eps * (exact.abs() if kind is Int8Linear else largest)
    assert bool(((weight - exact).abs() <= half_step + slack).all())
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)).bfloat16()
    if cut:
        x = torch.cat([x, x], -1)[:, :inputs]  # not contiguous
    product, shift = layer(x), biased * bias.float()
    assert product.dtype == torch.bfloat16
    bound = 2 * torch.finfo(torch.bfloat16).eps * F.linear(x.float().abs(), weight.abs(), shift)
    assert bool(((product.float() - F.linear(x.float(), weight, shift)).abs() <= bound + 1e-6).all())


def kinds(model: LanguageModel) -> tuple[type, type]:
    assert isinstance(model, CausalLM)
    assert isinstance(model.strategy, Lean)
    return type(model.strategy.lean.layers[0].down), type(model.strategy.lean.head)


@pytest.mark.parametrize("name", ["bfloat16", *linear.QUANTIZATIONS])
def test_loading_by_name(name: str) -> None:
    """Drafts of a chain, a tree and a router's arm load. A trained controller accepts a draft of any precision."""
    ways: list[dict[str, Any]] = [
        {"draft": "tiny-draft", "length": "tiny-lag-free", "cost": 0.2},
        {"draft": "tiny-draft", "tree": "2x1", "verifier": "spec-infer"},
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


def test_layers_that_cannot_be_rounded_are_refused() -> None:
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
