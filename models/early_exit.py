"""Early exits: the target's first layers draft (self-speculative decoding; Huang et al. 2024, Table 6).

The hidden state of layer ℓ goes through the target's final norm and head; weights are shared, not copied. With its own
cache an exit is an ordinary model. In the decoder it uses the first layers of the target's cache, so that the prompt is
read once and the target overwrites the entries of drafts.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from ..common.errors import InputError
from .causal_lm import CausalLM
from .given import shell


class EarlyExit(CausalLM):
    """The target without the layers after the first ``layer``.

    Raises:
        InputError: the target has no such layer, is an encoder-decoder, or uses longrope.
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
            raise InputError(f"arm 'exit:{layer}': the target's forward was replaced, which no part of it can follow")
        vars(self).update(vars(target))  # everything except the depth
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
    """``model`` with only the first ``count`` of its ``layers`` layers, sharing its modules."""
    *above, last = layers_name(model, layers).split(".")

    shorter = place = shell(model)
    for name in above:
        place._modules[name] = shell(place._modules[name])
        place = place._modules[name]
    place._modules[last] = nn.ModuleList(list(place._modules[last])[:count])
    return shorter  # type: ignore[no-any-return]


def layers_name(model: PreTrainedModel, layers: int) -> str:
    """The name of the list of the ``layers`` layers of ``model``, such as ``model.layers``.

    Raises:
        InputError: it has no such list.
    """
    lists: list[str] = [
        name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == layers
    ]
    if not lists:
        raise InputError(f"{model.config.model_type}: its layers are not in a list, and cannot be taken out of it")
    return min(lists, key=lambda name: name.count("."))
