"""The model protocol: the interface of language models to the engine.

A model holds no texts. Texts are stored by key in a cache that the caller owns. A forward appends new tokens to any
number of texts and returns logits and hidden states, text by text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...common.errors import InputError
from .loaded import LoadedModel
from .text_cache import TextCache
from .tree_mask import TreeMask


class Read(NamedTuple):
    """New tokens of one text.

    Attributes:
        text: the text's key in the cache.
        tokens: tokens to append, at least one.
        keep: number of last tokens for which results are returned.
        tree: tree mask of the last tokens; None for a chain.
        hidden: number of last tokens whose hidden states are returned, at least ``keep``; None for ``keep``.
        states: (n, d) the states before each token, for models that read them; None for zeros.
    """

    text: Hashable
    tokens: Sequence[int]
    keep: int = 1
    tree: TreeMask | None = None
    hidden: int | None = None
    states: Tensor | None = None

    @property
    def kept_states(self) -> int:
        """Number of hidden states that are returned."""
        return self.keep if self.hidden is None else self.hidden


class LanguageModel(ABC):
    """A target or a draft.

    Attributes:
        model: the wrapped model.
        name: architecture, for messages.
        device: device of the logits.
        vocab_size: V, the number of rows of the output embedding.
        kept_tokens: (M,) the only tokens with finite logits, ascending, where the vocabulary is trimmed; None for all.
        hidden_size: d, the size of the states that logits are computed from.
        context: maximum number of tokens of a text; None for no limit.
        reads_states: whether it is a draft that reads the target's hidden states, ``Read.states``.
        state_layers: the layers whose outputs follow the last states in what :meth:`forward` returns: 1 is the first.
    """

    model: LoadedModel
    name: str
    device: torch.device
    vocab_size: int
    hidden_size: int
    context: int | None
    kept_tokens: Tensor | None = None
    reads_states: bool = False
    state_layers: tuple[int, ...] = ()

    @abstractmethod
    def new_cache(self) -> TextCache:
        """An empty cache for this model."""

    @abstractmethod
    def begin(self, cache: TextCache, text: Hashable, prompt: Sequence[int], reserve: int) -> list[int]:
        """Add a text to ``cache`` with room for ``reserve`` tokens after the prompt; returns the tokens to read."""

    @abstractmethod
    def forward(self, cache: TextCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        """Append the new tokens of each read to its text.

        Returns:
            Logits (N, V) and hidden states (N', d + L·d) in the order of the reads, the last ones first: N is the sum
            of ``keep``, N' the sum of ``kept_states``, and L the number of ``state_layers``.
        """

    def kept_below(self, size: int) -> Tensor | None:
        """The ``kept_tokens`` below ``size``, where a draft may have more tokens than its target; None for all."""
        return None if self.kept_tokens is None else self.kept_tokens[self.kept_tokens < size]

    def require_tokens_alone(self, task: str) -> None:
        """Raise InputError if the model reads a target's states, which ``task`` does not have."""
        if self.reads_states:
            raise InputError(
                f"{task}: the draft reads the target's states, which only decoding gives it; take a draft that reads "
                "tokens alone"
            )

    def embed(self, cache: TextCache, text: Hashable, hidden: Tensor) -> Tensor:
        """The prompt's embedding (d,) for routers, from the ``hidden`` state (d,) of its last token.

        It is the target's sentence embedding of Huang et al. 2024, §3.1, a by-product of the prefill.
        """
        return hidden
