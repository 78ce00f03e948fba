"""The interface of drafters, which propose tokens for the requests of a round.

A drafter owns the caches of its draft models. It serves all requests of an engine together, so that they share its
forwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..draft import NO_DRAFT, Draft
from ..models import LanguageModel
from ..prefill import read_prompts

if TYPE_CHECKING:
    from ..request import Request


class Drafter(ABC):
    """Proposes drafts, using each request's random source, length controller and sampling parameters."""

    @abstractmethod
    def start(self, requests: Sequence[Request]) -> None:
        """Add requests whose prompts the target has read."""

    @abstractmethod
    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        """A draft for each request, at most ``max_draft`` tokens deep."""

    @abstractmethod
    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        """Called when the nodes ``path`` of ``draft`` were accepted; ``request.text`` does not include them yet."""

    @abstractmethod
    def release(self, request: Request) -> None:
        """Remove a request."""

    def room(self, request: Request) -> int:
        """Number of cache columns needed after a request's prompt."""
        return request.budget

    def clear(self) -> None:  # noqa: B027 — not every drafter holds something
        """Remove all requests, also after an interrupted round."""


class Autoregressive(Drafter):
    """Drafts nothing: every round is an autoregressive step of the target."""

    def start(self, requests: Sequence[Request]) -> None:
        pass

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [NO_DRAFT] * len(requests)

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass


class ModelDrafter(Drafter):
    """Drafts with a model, whose cache holds a prefix of each request's text between rounds.

    Args:
        model: the draft model.
        vocab_size: the target's V, to which a larger draft vocabulary is cut.
    """

    def __init__(self, model: LanguageModel, vocab_size: int) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.cache = model.new_cache()

    def start(self, requests: Sequence[Request]) -> None:
        readable = []
        for request in requests:
            if max(request.prompt) < self.model.vocab_size:
                readable.append(request)
            else:
                self.cache.add(request, 0)  # it continues without drafts
        if readable:
            read_prompts(self.model, self.cache, {request: request.prompt for request in readable}, self.room)

    def unread(self, request: Request, copied: Sequence[int] = ()) -> list[int]:
        """The tokens to read next: the text's unread tokens and ``copied``; empty if one is outside the vocabulary.

        Vocabularies of one tokenizer may be padded differently. If the target emits a token outside the draft's
        vocabulary, the request continues without drafts.
        """
        tokens = [*request.text[self.cache.length(request) :], *copied]
        return tokens if max(tokens) < self.model.vocab_size else []

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if draft.tokens:
            start, read = len(request.text), self.cache.length(request)
            self.cache.keep(request, start, [start + node for node in path if start + node < read])

    def release(self, request: Request) -> None:
        self.cache.remove(request)

    def clear(self) -> None:
        self.cache.clear()
