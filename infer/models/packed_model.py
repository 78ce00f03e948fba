"""Models of transformers whose linear layers compute with reordered or rounded weights, without a lean forward.

With PyTorch's default products a processor of AMD reads two tokens in twice the time of one, so that verifying a draft
takes longer than generating its tokens one by one. With reordered weights reading eight takes little longer than one
(docs/performance.md). The weights of drafts can also be rounded.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .devices import is_dispatched
from .packed_linear import FEW, packing_pays
from .quantized_linear import MakeLinear, Quantization, linears
from .state_input import StateInput
from .trimmed_head import TrimmedHead

LINEAR = {nn.Linear, Conv1D, TrimmedHead}
KNOWN_MODULES = ("torch.nn.", "transformers.", TrimmedHead.__module__, StateInput.__module__)  # no adapters
SMALLEST = FEW  # elements of weights that are reordered: the product of others is never packed
LARGEST = 4  # maximum GiB of such weights, since they are copied


class PackedForward:
    """The forward of one linear layer in inference, with a copy of its weights in the form of ``linear``."""

    def __init__(self, module: Any, linear: MakeLinear) -> None:
        weight = module.weight.detach()
        bias = None if module.bias is None else module.bias.detach()
        self.product = linear(weight.t().contiguous() if isinstance(module, Conv1D) else weight, bias)
        self.dtype, self.plain = weight.dtype, module.forward

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes (…, in) → (…, out)."""
        if torch.is_grad_enabled() or x.dtype != self.dtype:
            result: Tensor = self.plain(x)
            return result
        rows = self.product(x.reshape(-1, x.shape[-1]))
        return rows.view(*x.shape[:-1], rows.shape[-1])


def pack(model: PreTrainedModel, quantization: Quantization | None = None) -> PreTrainedModel:
    """``model`` with reordered weights, sharing everything else with it; ``model`` itself where that gains nothing.

    The modules keep their classes, parameters and hooks. Later changes of the packed weights have no effect.

    Args:
        quantization: round the weights, those of a draft in bfloat16.

    Raises:
        InputError: weights have sizes that cannot be quantized.
    """
    if why_not_packed(model) is not None or (quantization is None and not packing_pays(model.dtype)):
        return model
    inner, output = linears(quantization)
    head = model.get_output_embeddings()
    done: dict[nn.Module, nn.Module] = {}

    def packed(module: nn.Module) -> nn.Module:
        if module not in done:
            other = done[module] = copy(module)
            other._modules = {name: part if part is None else packed(part) for name, part in module._modules.items()}
            if _packs(module):
                other.forward = PackedForward(module, output if module is head else inner)
        return done[module]

    with torch.inference_mode():
        result = packed(model)
    assert isinstance(result, PreTrainedModel)
    return result


def why_not_packed(model: PreTrainedModel) -> str | None:
    """Why :func:`pack` leaves ``model`` as it is, as a sentence about the model; None if it does not."""
    if model.device.type != "cpu" or is_dispatched(model):
        return "it is not on the CPU"
    if not all(type(module).__module__.startswith(KNOWN_MODULES) for module in model.modules()):
        return "it has adapters or quantized layers"
    weights: list[Any] = [module.weight for module in model.modules() if _packs(module)]
    size = sum(weight.numel() * weight.element_size() for weight in weights) / 2**30
    if size > LARGEST:
        return f"its weights take {size:.1f} GiB, more than {LARGEST}"
    return None if weights else f"its linear layers have fewer than {SMALLEST} weights each"


def _packs(module: Any) -> bool:
    """Whether the module is a linear layer with many weights, whose forward nobody has replaced."""
    return type(module) in LINEAR and "forward" not in vars(module) and module.weight.numel() >= SMALLEST
