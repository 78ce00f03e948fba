"""Early exits: the target's first layers draft for all of it (self-speculative decoding; Huang et al. 2024, Table 6).

The hidden state of layer ℓ goes through the target's own final norm and head. Nothing is copied: the weights are the
target's. On a cache of its own an exit is a model like others; in the decoder it reads and writes the first layers of
the target's cache, so that a prompt is never read twice and what it drafts the target overwrites.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ...controllers.errors import InputError
from .causal_lm import CausalLM


class EarlyExit(CausalLM):
    """The target cut short after ``layer`` of its layers.

    Raises:
        InputError: the target has no such layer, is an encoder-decoder, or reads long texts with other rotary factors.
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
        vars(self).update(vars(target))  # all of the target but its depth
        self.model = cut(target.model, layer, target.layers)
        self.layers = layer
        self.call = None
        self.lean = None if target.lean is None else target.lean.first(layer)

    @property
    def parameters(self) -> int:
        """Parameters that a forward reads."""
        return sum(parameter.numel() for parameter in self.model.parameters())


@torch.no_grad()
def cut(model: PreTrainedModel, count: int, layers: int) -> PreTrainedModel:
    """``model`` with the first ``count`` of its ``layers`` layers: other containers around the same modules."""
    lists = [
        name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == layers
    ]
    if not lists:
        raise InputError(f"{model.config.model_type}: keeps its layers where no early exit can be made of them")
    *above, last = min(lists, key=lambda name: name.count(".")).split(".")

    def shell(module: Any) -> Any:
        other = copy(module)
        other._modules = dict(module._modules)
        return other

    shorter = place = shell(model)
    for name in above:
        place._modules[name] = shell(place._modules[name])
        place = place._modules[name]
    place._modules[last] = nn.ModuleList(list(place._modules[last])[:count])
    return shorter  # type: ignore[no-any-return]
