"""Early exits: the target's first layers draft (self-speculative decoding; Huang et al. 2024, Table 6).

The hidden state of layer ℓ goes through the target's final norm and head. Weights are shared, not copied. With a cache
of its own, an early exit is an ordinary model. In the decoder it uses the first layers of the target's cache, so that
the prompt is read once and the target overwrites the cache entries of drafts.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from ..common.errors import InputError
from .causal_lm import CausalLM
from .model_snapshot import shell


class EarlyExit(CausalLM):
    """The first ``layer`` layers of the target, with its final norm and head.

    Raises:
        InputError: the target has no such layer, is an encoder-decoder, uses longrope, or has a replaced forward.
    """

    def __init__(self, target: CausalLM, layer: int) -> None:
        if target.model.config.is_encoder_decoder:
            raise InputError(
                f"arm 'exit:{layer}': {target.name} is an encoder-decoder; early exits need a decoder-only target"
            )
        if target.switch is not None:
            raise InputError(f"arm 'exit:{layer}': {target.name} with longrope has no early exits; leave the arm out")
        if not 1 <= layer < target.layers:
            raise InputError(
                f"arm 'exit:{layer}': the target has {target.layers} layers; choose one from 1 to {target.layers - 1}"
            )
        if "forward" in vars(target.packed):
            raise InputError(
                f"arm 'exit:{layer}': needs the original forward of the target, which was replaced; leave the arm out"
            )
        vars(self).update(vars(target))  # all attributes; those that depend on the depth follow
        self.model = cut(target.model, layer, target.layers)
        self.packed = cut(target.packed, layer, target.layers)
        self.layers = layer
        self.strategy = target.strategy.of(self)

    @property
    def parameters(self) -> int:
        """Number of parameters used by a forward."""
        return sum(parameter.numel() for parameter in self.model.parameters())


@torch.no_grad()
def cut(model: PreTrainedModel, count: int, layers: int) -> PreTrainedModel:
    """Return ``model`` with only the first ``count`` of its ``layers`` layers; the modules are shared."""
    *above, last = layers_name(model, layers).split(".")

    shorter = module = shell(model)
    for name in above:
        module._modules[name] = shell(module._modules[name])
        module = module._modules[name]
    module._modules[last] = nn.ModuleList(list(module._modules[last])[:count])
    return shorter  # type: ignore[no-any-return]


def layers_name(model: PreTrainedModel, layers: int) -> str:
    """Return the name of the list of the ``layers`` layers of ``model``, such as ``model.layers``.

    Raises:
        InputError: the model has no such list.
    """
    lists: list[str] = [
        name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == layers
    ]
    if not lists:
        raise InputError(f"{model.config.model_type}: its layers are not in a list, and cannot be taken out of it")
    return min(lists, key=lambda name: name.count("."))
