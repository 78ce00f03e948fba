"""The interface of KV caches, which hold texts by key.

A model holds no texts. The caller owns a :class:`TextCache`, which stores texts by key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence


class TextCache(ABC):
    """Texts by key; a text has a column for each of its tokens that a model has read."""

    @abstractmethod
    def add(self, text: Hashable, reserve: int) -> None:
        """Add an empty text with room for ``reserve`` tokens; the text may grow longer."""

    @abstractmethod
    def remove(self, text: Hashable) -> None:
        """Remove a text."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all texts."""

    @abstractmethod
    def __contains__(self, text: Hashable) -> bool:
        """Return true if the cache has ``text``."""

    @abstractmethod
    def length(self, text: Hashable) -> int:
        """Return the number of tokens of ``text`` in the cache."""

    @abstractmethod
    def crop_text(self, text: Hashable, length: int) -> None:
        """Remove all tokens of ``text`` except the first ``length``."""

    @abstractmethod
    def keep(self, text: Hashable, length: int, columns: Sequence[int]) -> None:
        """Keep the first ``length`` columns of ``text``, and move ``columns``, a path of a tree, to follow them.

        A cache may remove the end of the path; :meth:`length` then returns the actual length.
        """

    def growth(self, reserves: Sequence[int]) -> int:
        """Return the bytes by which the memory grows with further texts of ``reserves`` tokens; 0 if unknown."""
        return 0
