"""The model protocol: what the engine asks of a language model, whatever runs it.

A model holds no text. Texts live in a cache that the caller owns, each under a key of its own; a forward appends new
tokens to any number of them and returns logits and hidden states, one text's after another's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .kv_cache import RaggedKVCache
from .tree_mask import TreeMask


class Read(NamedTuple):
    """New tokens of one text.

    Attributes:
        text: the text's key in the cache.
        tokens: what is appended to it, at least one token.
        keep: results are wanted for the last ``keep`` of them.
        tree: where the last of them stand in a draft tree; None when each follows the one before.
    """

    text: Hashable
    tokens: Sequence[int]
    keep: int = 1
    tree: TreeMask | None = None


class LanguageModel(ABC):
    """A target or a draft.

    Attributes:
        name: its architecture, for messages.
        device: where its logits come out.
        vocab_size: V, the rows of its output embedding.
        hidden_size: d, the size of the states that logits are computed from.
        context: the longest text in tokens; None where there is no limit.
    """

    name: str
    device: torch.device
    vocab_size: int
    hidden_size: int
    context: int | None

    @abstractmethod
    def new_cache(self) -> RaggedKVCache:
        """An empty cache for texts that this model reads."""

    @abstractmethod
    def begin(self, cache: RaggedKVCache, text: Hashable, prompt: Sequence[int], reserve: int) -> list[int]:
        """Add a text to ``cache``, with room for ``reserve`` tokens after the prompt; the tokens to read first."""

    @abstractmethod
    def forward(self, cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        """Append to each read's text its new tokens.

        Returns:
            logits (N, V) and the hidden states (N, d) they come from, N the sum of the reads' ``keep``, in their order.
        """

    def embed(self, cache: RaggedKVCache, text: Hashable, hidden: Tensor) -> Tensor:
        """The embedding (d,) of a prompt that a router chooses by, from the ``hidden`` state (d,) of its last token.

        Huang et al. 2024, §3.1: a sentence embedding from the target; the prefill gives it anyway.
        """
        return hidden
