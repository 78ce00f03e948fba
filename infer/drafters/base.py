"""The interface of drafters, which propose tokens for the requests of a round.

A drafter owns the caches of its draft models. It serves all requests of an engine together, so that they share its
forwards.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..draft import NO_DRAFT, Draft
from ..models import LanguageModel
from ..prefill import read_prompts

if TYPE_CHECKING:
    from ..request import Request


class Drafter(ABC):
    """Proposes drafts, using each request's random source, length controller and sampling parameters.

    Attributes:
        reads_states: whether it reads ``Request.states``, the target's hidden states.
    """

    reads_states = False

    def start(self, requests: Sequence[Request]) -> None:  # noqa: B027 — not every drafter prepares something
        """Add requests whose prompts the target has read."""

    @abstractmethod
    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        """A draft for each request, at most ``max_draft`` tokens deep."""

    @abstractmethod
    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        """Called when the nodes ``path`` of ``draft`` were accepted; ``request.text`` does not include them yet."""

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:  # noqa: B027 — most do not go by time
        """Called after a round with its wall time; its drafts had so many tokens and forwards at most."""

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

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [NO_DRAFT] * len(requests)

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass


class ModelDrafter(Drafter):
    """Drafts with a model, whose cache holds a prefix of each request's text between rounds.

    A request's prompt is read when it drafts for the first time, so that a request that never drafts costs nothing.

    Args:
        model: the draft model.
        vocab_size: the target's V, to which a larger draft vocabulary is cut.
    """

    def __init__(self, model: LanguageModel, vocab_size: int) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.cache = model.new_cache()

    def unread(self, request: Request, copied: Sequence[int] = ()) -> list[int]:
        """The tokens to read after the prompt: the text's unread ones and ``copied``; empty if the draft cannot.

        Vocabularies of one tokenizer may be padded differently. If the prompt has a token outside the draft's
        vocabulary, or the target emits one, the request continues without drafts.
        """
        read = request in self.cache
        tokens = request.text[self.cache.length(request) :] if read else request.output.tokens
        if self.model.vocab_size < self.vocab_size:
            seen = tokens if read else [*request.prompt, *tokens]
            if max([*seen, *copied]) >= self.model.vocab_size:
                return []
        return [*tokens, *copied]

    def read_prompts(self, requests: Sequence[Request]) -> None:
        """Read the prompts of those of ``requests`` that draft for the first time."""
        started = time.perf_counter()
        prompts = {request: request.prompt for request in requests if request not in self.cache}
        if not prompts:
            return
        read_prompts(self.model, self.cache, prompts, self.room)
        seconds = time.perf_counter() - started
        for request in prompts:
            request.output.stats.prefill_seconds += seconds
            request.output.stats.seconds -= seconds  # the round's time, which the engine adds, includes it

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if draft.tokens:
            start, read = len(request.text), self.cache.length(request)
            self.cache.keep(request, start, [start + node for node in path if start + node < read])

    def release(self, request: Request) -> None:
        if request in self.cache:
            self.cache.remove(request)

    def clear(self) -> None:
        self.cache.clear()
