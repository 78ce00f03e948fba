"""Longrope (Phi-3's 128k models): two sets of rotary factors, one for short texts and one for long ones.

A text that grows past the original context changes from one to the other, all its keys with it: transformers reads it
again from its start then, and so do we. No forward may read to both sides of the switch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from .kv_cache import RaggedKVCache


def longrope_switch(config: Any) -> int | None:
    """The original context of a model with longrope, whatever its layers' types; None without."""
    parameters = getattr(config, "rope_parameters", None) or {}
    each = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    found = [p["original_max_position_embeddings"] for p in each if p.get("rope_type") == "longrope"]
    return min(found) if found else None


class TokenKVCache(RaggedKVCache):
    """A cache that remembers the tokens of its texts, so that they can be read again.

    Attributes:
        tokens: by text, a token for each column.
        long: the texts whose keys were made with the factors of long texts.
    """

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.tokens: dict[Hashable, list[int]] = {}
        self.long: set[Hashable] = set()

    def add(self, text: Hashable, reserve: int) -> None:
        super().add(text, reserve)
        self.tokens[text] = []

    def remove(self, text: Hashable) -> None:
        super().remove(text)
        del self.tokens[text]
        self.long.discard(text)

    def note(self, text: Hashable, tokens: Sequence[int], *, long: bool) -> None:
        """``tokens`` are about to be appended to ``text``."""
        self.tokens[text] = [*self.tokens[text], *tokens]
        if long:
            self.long.add(text)
        else:
            self.long.discard(text)

    def crop_text(self, text: Hashable, length: int) -> None:
        super().crop_text(text, length)
        self.tokens[text] = self.tokens[text][:length]

    def keep(self, text: Hashable, length: int, columns: Sequence[int]) -> None:
        super().keep(text, length, columns)
        tokens = self.tokens[text]
        self.tokens[text] = [*tokens[:length], *(tokens[column] for column in columns)]
