"""What drafters have in common that copy from the text or ask a draft model, by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..models import LanguageModel
from .base import ModelDrafter
from .ngram import CopyCosts, Ngram, TextCopies

if TYPE_CHECKING:
    from ..request import Request


class CopyingDrafter(ModelDrafter):
    """Keeps every request's n-gram index, and what rounds take.

    Attributes:
        joined: whether the model can draft after a copy.
    """

    joined = True

    def __init__(self, model: LanguageModel, vocab_size: int, options: Ngram) -> None:
        super().__init__(model, vocab_size)
        self.joined = type(self).joined and not self.reads_states  # copied tokens have no states yet
        self.options, self.costs = options, CopyCosts(options)
        self.texts: dict[Request, TextCopies] = {}

    def start(self, requests: Sequence[Request]) -> None:
        super().start(requests)
        for request in requests:
            self.texts[request] = TextCopies(request, self.options, self.costs, model=True, joined=self.joined)

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:
        self.costs.add(tokens, forwards, seconds)

    def release(self, request: Request) -> None:
        super().release(request)
        self.texts.pop(request, None)

    def clear(self) -> None:
        super().clear()
        self.texts.clear()
