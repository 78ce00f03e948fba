"""Early exits: the target's first layers draft for all of it (self-speculative decoding; Huang et al. 2024, Table 6).

The hidden state of layer ℓ goes through the target's own final norm and head. Nothing is copied: weights are the
target's, and in the decoder so is the cache.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..controllers.errors import InputError
from .cached_model import CachedModel
from .tree_mask import TreeMask


class FirstLayers(CachedModel):
    """The target cut short after ``layer`` of its layers, with a cache of its own.

    Raises:
        InputError: the target has no such layer, or is an encoder-decoder.
    """

    def __init__(self, target: CachedModel, layer: int) -> None:
        kind = target.model.config.model_type
        if target.model.config.is_encoder_decoder:
            raise InputError(
                f"arm 'exit:{layer}': {kind} is an encoder-decoder; early exits need a decoder-only target"
            )
        if not 1 <= layer < target.layers:
            raise InputError(
                f"arm 'exit:{layer}': the target has {target.layers} layers; choose one from 1 to {target.layers - 1}"
            )
        vars(self).update(vars(target))  # all of the target but its depth and its cache
        self.model = cut(target.model, layer, target.layers)
        self.layers = layer
        self.whole = target
        self.call = None
        self.lean = None if target.lean is None else target.lean.first(layer)
        self.start(0)

    @property
    def parameters(self) -> int:
        """Parameters that a forward reads."""
        return sum(parameter.numel() for parameter in self.model.parameters())


class EarlyExit(FirstLayers):
    """The same on the target's own cache: a prompt is never read twice, and what it drafts the target overwrites."""

    def start(self, capacity: int) -> None:
        """Look at the target's cache, which has been started, and maybe filled, before."""
        self.cache = self.whole.cache.first(self.layers)
        self.reserve(capacity)

    @property
    def length(self) -> int:
        """Tokens read: all that the target has, and what was drafted after them."""
        return max(self.cache.length, self.whole.length)

    def keep(self, length: int, columns: list[int]) -> None:
        """Roll back to the text, which the target has rolled back to."""
        self._follow()

    def forward(
        self,
        tokens: Tensor,
        *,
        keep: int | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
        branches: TreeMask | None = None,
    ) -> tuple[Tensor, Tensor]:
        if self.cache.length < self.whole.length:
            self._follow()
        return super().forward(tokens, keep=keep, padding=padding, positions=positions, branches=branches)

    def _follow(self) -> None:
        for layer in self.cache.own:
            layer.length = self.whole.length


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
