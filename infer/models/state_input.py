"""Drafts that read the target's states beside the tokens: EAGLE (Li et al. 2024, §4).

The input of the token x_t is made of its embedding and the target's last hidden state s_{t-1}, from which the target
drew x_t. At drafted positions, which the target has not read, the draft's own last hidden state stands in for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...common.errors import InputError

if TYPE_CHECKING:
    from .causal_lm import CausalLM

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

    def check(self, target: CausalLM) -> None:
        """Raise InputError if ``target`` does not give what :meth:`from_target` takes."""
        if self.size != target.hidden_size:
            raise InputError(
                f"draft: reads states of size {self.size}, the target's have size {target.hidden_size}; take the "
                "target it was made for"
            )

    @abstractmethod
    def target_layers(self, target: CausalLM) -> tuple[int, ...]:
        """The layers of ``target`` whose outputs are read beside its last state."""


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

    def target_layers(self, target: CausalLM) -> tuple[int, ...]:
        return ()


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
