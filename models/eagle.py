"""Drafts that read the target's states beside the tokens: EAGLE-3 (Li et al. 2025, arXiv 2503.01840, §3).

The input for the token x_t is made of its embedding e_t and a state g_{t-1}. If the target has read x_{t-1}, the state
is g = W [a; b; c], where a, b and c are outputs of three of the target's layers (:class:`Eagle3Input`). The target has
not read drafted tokens; for these the draft's last hidden state replaces g. The first layer reads [e; g]
(:class:`FirstLayer`), and the final norm is part of the head (:class:`NormedHead`). The first token of a text has no
state before it, so that the draft does not read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..common.errors import InputError
from .trimmed_head import TrimmedHead

NAME = "state_input"  # name of the module in a draft


class Eagle3Input(nn.Module):
    """Computes [e; g] for embeddings e (…, d) and states g (…, d).

    Args:
        layers: the target's layers whose outputs are read; None for layers 2, n // 2 and n - 3 of n.
        count: number L of these layers.
        vocabulary: vocabulary size of the target.
        target: d_t, the size of the target's states.
        width: d, the size of the draft's states.
        eps: epsilon of the root-mean-square norms.
        norm_all: whether one norm is applied to the L states together, before W.
        norm_each: whether each of the L states has a norm.

    Attributes:
        size: d_t.
        skipped: number of first tokens of a text that the draft does not read.
        shares_embedding: whether the draft's embedding is the target's.
    """

    skipped = 1
    shares_embedding: bool = False

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

    def from_target(self, states: Tensor) -> Tensor:
        """Return the states (…, d) that the draft reads tokens with.

        Args:
            states: (…, d_t + L·d_t) the target's states of the tokens before them.
        """
        inner = states[..., -self.fc.in_features :].to(self.fc.weight.dtype)
        if self.input_norm is not None:
            inner = self.input_norm(inner)
        if self.fc_norm is not None:
            parts = zip(self.fc_norm, torch.split(inner, self.size, -1), strict=True)
            inner = torch.cat([norm(part) for norm, part in parts], -1)
        return self.fc(inner)  # type: ignore[no-any-return]

    def check(self, hidden_size: int, vocab_size: int) -> None:
        """Check that the draft was made for a target of these sizes.

        Raises:
            InputError: the draft was made for a target of other sizes.
        """
        if self.size != hidden_size:
            raise InputError(
                f"draft: reads states of size {self.size}, the target's have size {hidden_size}; take the target it "
                "was made for"
            )
        if self.vocabulary != vocab_size:
            raise InputError(
                f"draft: made for {self.vocabulary} tokens, the target has {vocab_size}; take the target it was made "
                "for"
            )

    def target_layers(self, count: int) -> tuple[int, ...]:
        """Return the layers, of a target with ``count`` layers, whose outputs the draft reads."""
        return (2, count // 2, count - 3) if self.layers is None else tuple(self.layers)


class FirstLayer(nn.Module):
    """A decoder layer of Llama or Qwen 3 that reads [e; g] (…, 2d) and returns (…, d).

    Args:
        layer: the layer whose modules are reused. New projections with 2d columns replace those of its attention.
        width: d.
        eps: epsilon of the root-mean-square norm of g.
        norm_before_residual: whether the output of attention is added to the normalised state instead of the state.
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

    def forward(self, hidden_states: Tensor, **keywords: Any) -> Tensor:
        embeddings, states = hidden_states.chunk(2, -1)
        normed = self.hidden_norm(states)
        read = torch.cat([self.input_layernorm(embeddings), normed], -1)
        mixed, _ = self.self_attn(hidden_states=read, **keywords)
        x = (normed if self.norm_before_residual else states) + mixed
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class NormedHead(TrimmedHead):
    """Final norm and output projection in one module, so that the draft's last hidden state is the one before the norm.

    Args:
        weight, tokens, size: as for :class:`.TrimmedHead`.
        norm: the final norm.
    """

    def __init__(self, weight: Tensor, tokens: Sequence[int], size: int, norm: nn.Module) -> None:
        super().__init__(weight, None, tokens, size)
        self.norm = norm

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.norm(input))


def is_eagle_module(module: nn.Module) -> bool:
    """Return true for the modules of this file, whose forwards call those of the library's modules in them."""
    return type(module) in (Eagle3Input, FirstLayer, NormedHead)


def find_state_input(model: PreTrainedModel) -> Eagle3Input | None:
    """Return the module with which ``model`` reads states; None if it reads none."""
    module = model._modules.get(NAME)
    return module if isinstance(module, Eagle3Input) else None
