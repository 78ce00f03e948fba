"""A decoder whose layers read keys and values from buffers of fixed sizes, as :mod:`.static_forward` runs them.

The decoder shares weights and hooks with the model, which is not changed. Two things differ. Root-mean-square norms are
one kernel (``F.rms_norm``) instead of eight. Attention multiplies the queries of a group by their shared keys and
values, instead of repeating the keys and values for each query (grouped-query attention, Ainslie et al. 2023). With the
sizes of Llama-3.1-8B on an H200, four tokens of each of sixteen texts take 9.5 ms instead of 14.9.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from .kv_cache import RaggedKVCache
from .model_snapshot import mirror

GROUPED = "specpilot_grouped_query"


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Return the attention (B, n, H, D) of queries (B, H, n, D) to keys and values (B, G, C, D); G divides H."""
    rows, heads, n, size = query.shape
    groups = key.shape[1]
    shared = query.reshape(rows, groups, heads // groups * n, size)
    scores = (shared @ key.transpose(2, 3)).view(rows, groups, heads // groups, n, -1)
    scores = scores * (size**-0.5 if scaling is None else scaling) + attention_mask.unsqueeze(2)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    weights = weights.view(rows, groups, heads // groups * n, -1)
    return (weights @ value).view(rows, heads, n, -1).transpose(1, 2), None


class FusedNorm:
    """A root-mean-square norm of the last dimension in one kernel.

    Args:
        weight: (d,) the scale. An input of another precision is converted to that of the weight for the computation.
        eps: epsilon of the norm.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise ``x``, (…, d) → (…, d)."""
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps).to(x.dtype)


@torch.inference_mode()
def fused_norm(module: nn.Module) -> FusedNorm | None:
    """Return the norm ``module`` as one kernel.

    None if the module is no root-mean-square norm, or if the kernel's results for random inputs differ from its own.
    """
    weight = module._parameters.get("weight")
    eps = vars(module).get("variance_epsilon", vars(module).get("eps"))
    named = type(module).__name__.endswith("RMSNorm")
    if not named or weight is None or weight.ndim != 1 or not isinstance(eps, float) or "forward" in vars(module):
        return None
    x = torch.randn(8, len(weight), generator=torch.Generator().manual_seed(0)).to(weight)
    expected = module(x)
    precision = 4 * torch.finfo(weight.dtype).eps
    for scale in (weight.detach(), 1.0 + weight.detach().float()):  # Gemma's norms multiply by 1 + weight
        norm = FusedNorm(scale.to(weight.dtype) if weight.dtype == torch.float64 else scale, eps)
        result = norm(x)
        if result.dtype == expected.dtype and torch.allclose(result, expected, precision, precision):
            return norm
    return None


AttentionInterface.register(GROUPED, grouped_attention)


class FixedLayers:
    """A copy of a model with layers for buffers of fixed sizes.

    Args:
        model: the model, which is not changed.
        layers: number of its layers.

    Attributes:
        model: the copy to call.
        layers: the layers of the copy.

    Raises:
        ValueError: the model's layers are not in a list, its attention cannot be replaced, or it has hooks.
    """

    def __init__(self, model: PreTrainedModel, layers: int) -> None:
        if model.config._attn_implementation != "sdpa":
            raise ValueError(f"its attention is {model.config._attn_implementation!r}, not 'sdpa'")
        if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
            raise ValueError("it has hooks")
        configs: dict[int, Any] = {}

        def change(copied: Any, module: nn.Module) -> None:
            """Replace the norms and the attention of the copy ``copied`` of ``module``."""
            norm = fused_norm(module)
            if norm is not None:
                copied.forward = norm
            config = vars(module).get("config")
            if config is not None:
                grouped = configs.setdefault(id(config), copy(config))
                grouped._attn_implementation, copied.config = GROUPED, grouped

        self.model: PreTrainedModel = mirror(model, change)
        decoder_layers = self.model.get_decoder()._modules.get("layers")
        if not isinstance(decoder_layers, nn.ModuleList) or len(decoder_layers) != layers:
            raise ValueError("its layers are not in a list")
        self.layers = list(decoder_layers)
        for index, layer in enumerate(self.layers):
            layer._forward_pre_hooks = copy(layer._forward_pre_hooks)
            layer._forward_pre_hooks_with_kwargs = copy(layer._forward_pre_hooks_with_kwargs)
            layer.register_forward_pre_hook(_slot_hook(index), with_kwargs=True)


def _slot_hook(index: int) -> Any:
    """Return a hook that passes its slots to layer ``index`` in place of the cache."""

    def hook(layer: nn.Module, arguments: Any, keywords: dict[str, Any]) -> Any:
        cache = keywords.get("past_key_values")
        if not isinstance(cache, RaggedKVCache):
            raise ValueError("its layers take no past_key_values")
        return arguments, keywords | {"past_key_values": cache.layer_slots[index]}

    return hook
