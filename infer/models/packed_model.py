"""Models of transformers whose linear layers compute with reordered weights, where there is no lean forward.

With PyTorch's default products a processor of AMD reads two tokens in twice the time of one, so that verifying a draft
takes longer than generating its tokens one by one. With reordered weights reading eight takes little longer than one
(docs/performance.md).
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..devices import is_dispatched
from .packed_linear import FEW, PackedLinear, packing_pays
from .state_input import StateInput
from .trimmed_head import TrimmedHead

LINEAR = {nn.Linear, Conv1D, TrimmedHead}
KNOWN_MODULES = ("torch.nn.", "transformers.", TrimmedHead.__module__, StateInput.__module__)  # no adapters
SMALLEST = FEW  # elements of weights that are reordered: the product of others is never packed
LARGEST = 4 << 30  # maximum bytes of such weights, since they are copied


class PackedForward:
    """The forward of one linear layer in inference, with a copy of its weights."""

    def __init__(self, module: Any) -> None:
        weight = module.weight.detach()
        bias = None if module.bias is None else module.bias.detach()
        self.product = PackedLinear(weight.t().contiguous() if isinstance(module, Conv1D) else weight, bias)
        self.dtype, self.plain = weight.dtype, module.forward

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes (…, in) → (…, out)."""
        if torch.is_grad_enabled() or x.dtype != self.dtype:
            result: Tensor = self.plain(x)
            return result
        rows = self.product(x.reshape(-1, x.shape[-1]))
        return rows.view(*x.shape[:-1], rows.shape[-1])


def pack(model: PreTrainedModel) -> PreTrainedModel:
    """``model`` with reordered weights, sharing everything else with it; ``model`` itself where that gains nothing.

    The modules keep their classes, parameters and hooks. Later changes of the packed weights have no effect.
    """
    if model.device.type != "cpu" or is_dispatched(model):
        return model
    if not all(type(module).__module__.startswith(KNOWN_MODULES) for module in model.modules()):
        return model
    weights: list[Any] = [module.weight for module in model.modules() if _packs(module)]
    if not 0 < sum(weight.numel() * weight.element_size() for weight in weights) <= LARGEST:
        return model
    done: dict[nn.Module, nn.Module] = {}

    def packed(module: nn.Module) -> nn.Module:
        if module not in done:
            other = done[module] = copy(module)
            other._modules = {name: part if part is None else packed(part) for name, part in module._modules.items()}
            if _packs(module):
                other.forward = PackedForward(module)
        return done[module]

    with torch.inference_mode():
        result = packed(model)
    assert isinstance(result, PreTrainedModel)
    return result


def _packs(module: Any) -> bool:
    """Whether the module is a linear layer with many weights, whose forward nobody has replaced."""
    return (
        type(module) in LINEAR
        and "forward" not in vars(module)
        and module.weight.numel() >= SMALLEST
        and packing_pays(module.weight.dtype)
    )
