"""Models of transformers whose linear layers compute with reordered weights: the same results, in any architecture."""

from __future__ import annotations

import pytest
import torch
from specpilot.infer.models import CausalLM, linear
from specpilot.infer.models.linear import PackedForward, pack
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .architectures import ENCODER_DECODERS, MAKERS, target_of
from .test_architectures import each
from .tiny import make

TEXT = [5, 9, 3, 7, 7, 1, 8, 2, 40, 11, 3, 9, 30, 2, 2, 17, 6, 21, 5, 50]


@pytest.fixture(autouse=True)
def _every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of any size, and products of any number of rows; on Intel's processors as well."""
    monkeypatch.setattr(linear, "SMALLEST", 1)
    monkeypatch.setattr(linear, "FEW", 0)
    monkeypatch.setattr(linear, "PLAIN_ROWS", 0)


def packed_layers(model: PreTrainedModel) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(vars(module).get("forward"), PackedForward)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each([*MAKERS, *ENCODER_DECODERS])
def test_logits_are_those_of_the_model(name: str, dtype: torch.dtype) -> None:
    model = target_of(name).to(dtype=dtype)
    packed = pack(model)
    linear = [module for module in model.modules() if type(module) in (nn.Linear, Conv1D)]
    assert len(packed_layers(packed)) == len(linear) >= 1
    assert not packed_layers(model)
    inputs = {"input_ids": torch.tensor([TEXT])}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.inference_mode():
        found, expected = (one(**inputs).logits.float() for one in (packed, model))
        exact = target_of(name).to(torch.bfloat16).float()(**inputs).logits if dtype == torch.bfloat16 else expected
    # In float32 the same; in bfloat16 as far from float32 as the model's own forward is, up to chance.
    error, own = (float((logits - exact).square().mean().sqrt()) for logits in (found, expected))
    assert error <= 1.5 * own + 1e-5 * float(exact.square().mean().sqrt())


def test_what_is_packed_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = target_of("gemma3")
    packed = pack(model)
    assert packed is not model
    assert all(ours is theirs for ours, theirs in zip(packed.parameters(), model.parameters(), strict=True))
    assert CausalLM(target_of("llama")).packed.lm_head.forward.__func__ is nn.Linear.forward  # it has the lean forward
    doubled = target_of("gemma3").double()
    assert pack(doubled) is doubled
    replaced = target_of("gemma3")
    replaced.lm_head.forward = lambda x: torch.zeros(*x.shape[:-1], 96)
    assert len(packed_layers(pack(replaced))) == len(packed_layers(packed)) - 1
    monkeypatch.setattr(linear, "MOST_GIB", 0)
    assert pack(model) is model
    monkeypatch.setattr(linear, "MOST_GIB", 1)
    monkeypatch.setattr(linear, "PLAIN_ROWS", 12)
    assert pack(model) is model
    halved = target_of("gemma3").to(dtype=torch.bfloat16)
    assert pack(halved) is not halved


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
