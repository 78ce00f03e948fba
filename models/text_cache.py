"""The interface of KV caches: texts by key.

A model holds no texts. Texts are stored by key in a :class:`TextCache` that the caller owns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence


class TextCache(ABC):
    """Texts by key, each with the tokens of it that a model has read: its columns."""

    @abstractmethod
    def add(self, text: Hashable, reserve: int) -> None:
        """Begin a text; make room for ``reserve`` tokens of it, though it may grow longer."""

    @abstractmethod
    def remove(self, text: Hashable) -> None:
        """End a text."""

    @abstractmethod
    def clear(self) -> None:
        """End all texts."""

    @abstractmethod
    def __contains__(self, text: Hashable) -> bool:
        """Whether ``text`` has been added."""

    @abstractmethod
    def length(self, text: Hashable) -> int:
        """Tokens of ``text`` in the cache."""

    @abstractmethod
    def crop_text(self, text: Hashable, length: int) -> None:
        """Forget all but the first ``length`` tokens of ``text``."""

    @abstractmethod
    def keep(self, text: Hashable, length: int, columns: Sequence[int]) -> None:
        """Of ``text`` keep the first ``length`` columns and ``columns``, a path of a tree, which close up behind.

        A cache may forget the end of the path; :meth:`length` tells.
        """

    def growth(self, reserves: Sequence[int]) -> int:
        """Bytes by which the memory grows with further texts of ``reserves`` tokens; 0 where that is not known."""
        return 0
