"""Longrope (Phi-3's 128k models): two sets of rotary factors, one for short texts and one for long ones.

When a text grows past the original context, all its keys change; transformers then reads it again from its start, and
so do we. One call of the model uses one set of factors, so results on both sides of the switch need two calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from .base import Read
from .kv_cache import RaggedKVCache


def longrope_switch(config: Any) -> int | None:
    """The original context of a model with longrope; None without longrope."""
    parameters = getattr(config, "rope_parameters", None) or {}
    each = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    found = [p["original_max_position_embeddings"] for p in each if p.get("rope_type") == "longrope"]
    return min(found) if found else None


def lengths_read(cache: RaggedKVCache, read: Read) -> tuple[int, int]:
    """Lengths of the shortest and the longest prefix for which ``read`` needs results."""
    past, count = cache.length(read.text), len(read.tokens)
    nodes = [] if read.tree is None else [position + 1 for position in read.tree.positions()]
    lengths = [*range(past + 1, past + count - len(nodes) + 1), *nodes]
    wanted = lengths[-read.keep :]
    return min(wanted), max(wanted)


class TokenKVCache(RaggedKVCache):
    """A cache that stores the tokens of its texts, so that they can be read again.

    Attributes:
        tokens: token of each column, by text.
        long: whether a text's keys were computed with the factors of long texts; None if some keys are missing.
    """

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.tokens: dict[Hashable, list[int]] = {}
        self.long: dict[Hashable, bool | None] = {}

    def add(self, text: Hashable, reserve: int) -> None:
        super().add(text, reserve)
        self.tokens[text], self.long[text] = [], False

    def remove(self, text: Hashable) -> None:
        super().remove(text)
        del self.tokens[text], self.long[text]

    def clear(self) -> None:
        super().clear()
        self.tokens.clear()
        self.long.clear()

    def note(self, text: Hashable, tokens: Sequence[int], *, long: bool | None) -> None:
        """Record ``tokens`` that will be appended to ``text``; ``long`` as for the class."""
        self.tokens[text] = [*self.tokens[text], *tokens]
        self.long[text] = long

    def crop_text(self, text: Hashable, length: int) -> None:
        super().crop_text(text, length)
        self.tokens[text] = self.tokens[text][:length]

    def keep(self, text: Hashable, length: int, columns: Sequence[int]) -> None:
        if self.long[text] is None:  # the keys will be recomputed: only the tokens matter
            self.lengths[self.rows[text]] = length + len(columns)
        else:
            super().keep(text, length, columns)
        tokens = self.tokens[text]
        self.tokens[text] = [*tokens[:length], *(tokens[column] for column in columns)]
