"""EAGLE-3 drafts (Li et al. 2025, arXiv 2503.01840, §3): a layer that reads the target's states at several depths.

The input of the token x_t is its embedding e_t beside a state g_{t-1} of the draft's size d. Where the target has read
x_{t-1}, it is W [a; b; c], made of the outputs of some of the target's layers; at drafted positions the draft's own
last state stands in for it. The first token of a text has no state before it, and is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...common.errors import InputError
from .state_input import StateReader
from .trimmed_head import TrimmedHead

if TYPE_CHECKING:
    from .causal_lm import CausalLM


class Eagle3Input(StateReader):
    """[e; g] for embeddings e (…, d) and states g (…, d).

    Args:
        layers: the target's layers that are read; None for the second, the middle and the last but two.
        count: their number L.
        vocabulary: number of the target's tokens.
        target: d_t, the size of the target's states.
        width: d.
        eps: epsilon of the root-mean-square norms.
        norm_all: one norm of the L states together, before W.
        norm_each: one for each of them.
    """

    skipped = 1

    def __init__(
        self,
        layers: Sequence[int] | None,
        *,
        count: int,
        vocabulary: int,
        target: int,
        width: int,
        eps: float,
        norm_all: bool = False,
        norm_each: bool = False,
    ) -> None:
        super().__init__()
        self.layers, self.vocabulary, self.size = layers, vocabulary, target
        self.input_norm = nn.RMSNorm(count * target, eps) if norm_all else None
        self.fc_norm = nn.ModuleList([nn.RMSNorm(target, eps) for _ in range(count)]) if norm_each else None
        self.fc = nn.Linear(count * target, width, bias=False)

    def forward(self, embeddings: Tensor, states: Tensor) -> Tensor:
        return torch.cat([embeddings, states], -1)

    def from_target(self, states: Tensor, *, beginning: bool) -> Tensor:
        inner = states[:, -self.fc.in_features :].to(self.fc.weight.dtype)
        if self.input_norm is not None:
            inner = self.input_norm(inner)
        if self.fc_norm is not None:
            parts = zip(self.fc_norm, torch.split(inner, self.size, -1), strict=True)
            inner = torch.cat([norm(part) for norm, part in parts], -1)
        return self.fc(inner)  # type: ignore[no-any-return]

    def check(self, target: CausalLM) -> None:
        super().check(target)
        if self.vocabulary != target.vocab_size:
            raise InputError(
                f"draft: made for {self.vocabulary} tokens, the target has {target.vocab_size}; take the target it was "
                "made for"
            )

    def target_layers(self, target: CausalLM) -> tuple[int, ...]:
        return (2, target.layers // 2, target.layers - 3) if self.layers is None else tuple(self.layers)


class FirstLayer(nn.Module):
    """A decoder layer of Llama or Qwen 3 that reads [e; g] (…, 2d) and returns (…, d).

    Args:
        layer: whose parts it takes; the projections of its attention are replaced by new ones of 2d columns.
        width: d.
        norm_before_residual: the layer's result is added to the normalised state instead of the state.
    """

    def __init__(self, layer: Any, width: int, eps: float, *, norm_before_residual: bool) -> None:
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.hidden_norm = type(layer.input_layernorm)(width, eps=eps)
        self.norm_before_residual = norm_before_residual
        for name in ("q_proj", "k_proj", "v_proj"):
            old = self.self_attn.get_submodule(name)
            self.self_attn.add_module(name, nn.Linear(2 * width, old.out_features, bias=old.bias is not None))

    def forward(self, hidden_states: Tensor, **rest: Any) -> Tensor:
        embeddings, states = hidden_states.chunk(2, -1)
        normed = self.hidden_norm(states)
        read = torch.cat([self.input_layernorm(embeddings), normed], -1)
        mixed, _ = self.self_attn(hidden_states=read, **rest)
        x = (normed if self.norm_before_residual else states) + mixed
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class NormedHead(TrimmedHead):
    """The final norm and the output projection in one, so that the state before the norm is the draft's last state.

    Args:
        norm: the final norm.
    """

    def __init__(self, weight: Tensor, tokens: Sequence[int], size: int, norm: nn.Module) -> None:
        super().__init__(weight, None, tokens, size)
        self.norm = norm

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.norm(input))
