"""What a drafter is: it proposes tokens for each request of a round, and is told what became of them.

A drafter owns what is special about its way to draft, and the caches of the models it drafts with. It serves all
requests of an engine at once, so that they share its forwards.
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
    """Proposes drafts, each by a request's own random source, length controller and sampling."""

    @abstractmethod
    def start(self, requests: Sequence[Request]) -> None:
        """Requests join; the target has read their prompts."""

    @abstractmethod
    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        """A draft after each request's text, up to its ``max_draft`` tokens deep."""

    @abstractmethod
    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        """The nodes ``path`` of ``draft`` were kept; ``request.text`` is still the text before the round."""

    @abstractmethod
    def release(self, request: Request) -> None:
        """A request leaves."""

    def room(self, request: Request) -> int:
        """Columns that caches need after a request's prompt."""
        return request.budget

    def clear(self) -> None:  # noqa: B027 — not every drafter holds something
        """Forget all requests, in whatever state an interrupted round has left them."""


class Autoregressive(Drafter):
    """Drafts nothing: every round is a plain step of the target."""

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
        vocab_size: V of the target; a draft that pads its vocabulary further is cut there.
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
                self.cache.add(request, 0)  # it goes on without drafts
        if readable:
            read_prompts(self.model, self.cache, {request: request.prompt for request in readable}, self.room)

    def unread(self, request: Request, copied: Sequence[int] = ()) -> list[int]:
        """What the model reads next, the text's last tokens and ``copied`` ones; empty without an embedding for all.

        Vocabularies of one tokenizer may be padded differently. A token beyond the draft's is no text of the
        tokenizer's; should the target emit one all the same, the request goes on without drafts.
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
