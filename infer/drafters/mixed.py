"""N-gram drafts and a draft model's: for each round a copy, the model's chain, or a copy and the chain after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...controllers.acceptance.ngram_index import NgramMatch
from ..draft import Draft
from .chain import Chain, ChainDrafter
from .copying import CopyingDrafter
from .ngram import point_masses

if TYPE_CHECKING:
    from ..request import Request


class ContinuedChain(Chain):
    """The model's chain after ``copied`` tokens; the length controller sees the model's tokens alone."""

    def __init__(self, request: Request, unread: list[int], copied: list[int]) -> None:
        self.copied = copied
        super().__init__(request, unread, len(copied))

    def _match(self) -> NgramMatch:
        return self.request.ngrams.match([*self.copied, *self.tokens])


class MixedDrafter(CopyingDrafter, ChainDrafter):
    """Chooses the sources of every request's round (:mod:`~specpilot.controllers.length.draft_sources`)."""

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        chains = [self._chain(request) for request in requests]
        self.extend(chains)
        return [self._joined(chain) for chain in chains]

    def _chain(self, request: Request) -> ContinuedChain:
        plan, copied = self.texts[request].plan()
        ended = bool(copied) and copied[-1] in request.stop_tokens
        unread = self.unread(request, copied) if plan.model and not ended else []
        return ContinuedChain(request, unread, copied)

    def _joined(self, chain: ContinuedChain) -> Draft:
        own, copied = chain.draft(), chain.copied
        if not copied:
            return own
        tokens = [*copied, *own.tokens]
        q = [*point_masses(copied, self.vocab_size, self.model.device), *own.distributions]
        return Draft(tokens, q, list(range(-1, len(tokens) - 1)), own.n_forwards, copied=len(copied))

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if request not in self.texts:  # the round in which it joins
            return
        if request in self.cache and self.cache.length(request) > self.trunk(request):
            super().commit(request, draft, path)
        self.texts[request].end_round(draft, len(path))
