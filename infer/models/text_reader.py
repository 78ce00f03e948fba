"""A reader of one text by one model, for uses other than the decoding loop (traces, perplexity, step times)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from .base import LanguageModel, Read
from .text_cache import TextCache
from .tree_mask import TreeMask


class TextReader:
    """A text in a cache.

    Args:
        cache: a cache that holds the text under the key ``text``. Default: a new cache.
    """

    def __init__(self, model: LanguageModel, cache: TextCache | None = None, text: Hashable = 0) -> None:
        self.model, self.text = model, text
        self.cache = model.new_cache() if cache is None else cache

    @classmethod
    def begin(cls, model: LanguageModel, prompt: Sequence[int], reserve: int = 0) -> tuple[TextReader, list[int]]:
        """A reader of a new text with room for ``reserve`` tokens after ``prompt``, and the tokens to read first."""
        reader = cls(model)
        return reader, model.begin(reader.cache, reader.text, prompt, reserve)

    @property
    def length(self) -> int:
        """Number of tokens read so far."""
        return self.cache.length(self.text)

    def read(
        self, tokens: Sequence[int], *, keep: int | None = None, tree: TreeMask | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read ``tokens``; return logits (n, V) and hidden states (n, d) of the last ``keep`` of them. Default: all."""
        keep = len(tokens) if keep is None else keep
        return self.model.forward(self.cache, [Read(self.text, tokens, keep, tree)])

    def crop(self, length: int) -> None:
        """Roll back to the first ``length`` tokens."""
        self.cache.crop_text(self.text, length)

    def keep(self, length: int, columns: Sequence[int]) -> None:
        """Roll back to the first ``length`` tokens and then ``columns``, a path of the tree read after them."""
        self.cache.keep(self.text, length, columns)
