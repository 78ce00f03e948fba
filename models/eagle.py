"""Drafts that read the target's states beside the tokens: EAGLE (Li et al. 2024, §4) and EAGLE-3 (2025, §3).

The input of the token x_t is made of its embedding e_t and a state g_{t-1}. Where the target has read x_{t-1}, the
state comes from the target. At drafted positions, which the target has not read, the draft's own last hidden state
stands in for it.

* EAGLE: the target's last hidden state, from which it drew x_t (:class:`StateInput`).
* EAGLE-3 (arXiv 2503.01840): W [a; b; c], made of the outputs of some of the target's layers (:class:`Eagle3Input`).
  The first layer reads [e; g] (:class:`FirstLayer`), and the final norm belongs to the head (:class:`NormedHead`). The
  first token of a text has no state before it, and is not read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..common.errors import InputError
from .trimmed_head import TrimmedHead

NAME = "state_input"  # of the module in a draft


class StateReader(nn.Module, ABC):
    """Makes a draft's inputs of embeddings and states.

    Attributes:
        size: of the target's states.
        skipped: number of tokens at the beginning of a text that the draft does not read.
    """

    size: int
    skipped: int = 0

    @abstractmethod
    def from_target(self, states: Tensor, *, beginning: bool) -> Tensor:
        """The states (n, d) to read tokens with, from what the target gave for the tokens before them (n', d').

        Args:
            beginning: the tokens begin their text.
        """

    def check(self, hidden_size: int, vocab_size: int) -> None:
        """Raise InputError if a target of such sizes does not give what :meth:`from_target` takes."""
        if self.size != hidden_size:
            raise InputError(
                f"draft: reads states of size {self.size}, the target's have size {hidden_size}; take the target it "
                "was made for"
            )

    @abstractmethod
    def target_layers(self, count: int) -> tuple[int, ...]:
        """The layers of a target of ``count`` layers whose outputs are read beside its last state."""


class StateInput(StateReader):
    """W [e; norm(s)] for embeddings e (…, d_e) and states s (…, d).

    Args:
        embedding: d_e, the size of embeddings.
        state: d, the size of the target's last hidden states.
        eps: epsilon of the root-mean-square norm.
    """

    def __init__(self, embedding: int, state: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.size = state
        self.norm = nn.RMSNorm(state, eps)
        self.linear = nn.Linear(embedding + state, embedding, bias=False)

    @torch.no_grad()
    def begin(self, size: float) -> None:
        """The weights to begin training with: the sum of state and embedding, both with a root mean square of one half.

        Args:
            size: root mean square of the embedding's entries.
        """
        embedding, state = self.linear.weight.shape[0], self.norm.weight.shape[0]
        self.norm.weight.fill_(0.5)
        self.linear.weight.copy_(torch.cat([torch.eye(embedding) * 0.5 / size, torch.eye(embedding, state)], -1))

    def forward(self, embeddings: Tensor, states: Tensor) -> Tensor:
        return self.linear(torch.cat([embeddings, self.norm(states)], -1))  # type: ignore[no-any-return]

    def from_target(self, states: Tensor, *, beginning: bool) -> Tensor:
        last = states[:, : self.size]
        return F.pad(last, (0, 0, 1, 0)) if beginning else last  # no state is before the first token

    def target_layers(self, count: int) -> tuple[int, ...]:
        return ()


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

    def check(self, hidden_size: int, vocab_size: int) -> None:
        super().check(hidden_size, vocab_size)
        if self.vocabulary != vocab_size:
            raise InputError(
                f"draft: made for {self.vocabulary} tokens, the target has {vocab_size}; take the target it was made "
                "for"
            )

    def target_layers(self, count: int) -> tuple[int, ...]:
        return (2, count // 2, count - 3) if self.layers is None else tuple(self.layers)


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


def state_input_of(model: PreTrainedModel) -> StateReader | None:
    """The module by which ``model`` reads states; None if it does not."""
    module = model._modules.get(NAME)
    return module if isinstance(module, StateReader) else None


def add_state_input(model: PreTrainedModel) -> StateInput:
    """Give ``model`` a :class:`StateInput`, with weights in its precision that are not set yet."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert isinstance(embedding, Tensor)
    assert isinstance(head, Tensor)
    module = StateInput(embedding.shape[1], head.shape[1]).to(head.device, head.dtype)
    model.add_module(NAME, module)
    return module
