"""N-gram drafts and a draft model's, chosen for each round by predicted acceptance and cost.

:class:`MixedDrafter` takes a copy, the model's chain, or a copy and the chain after it; :class:`MixedTreeDrafter` a
copy or a rate-optimal tree. :mod:`~specpilot.controllers.length.draft_sources` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...controllers.acceptance.ngram_index import NgramMatch
from ...models import LanguageModel
from ..core import NO_DRAFT, Draft, Request
from .base import ModelDrafter
from .best_first_tree import BestFirstDrafter
from .chain import Chain, ChainDrafter
from .ngram import CopyingDrafter, Ngram, copied_draft, point_masses


class CopyingModelDrafter(CopyingDrafter, ModelDrafter):
    """Copies, or drafts with a model."""

    with_model = True

    def __init__(self, model: LanguageModel, vocab_size: int, options: Ngram) -> None:
        super().__init__(model, vocab_size)
        self.copy_by(options)


class ContinuedChain(Chain):
    """The model's chain after ``copied`` tokens; the length controller sees the model's tokens alone."""

    def __init__(self, request: Request, unread: list[int], reach: int, copied: list[int]) -> None:
        self.copied = copied
        super().__init__(request, unread, reach, len(copied))

    def _match(self) -> NgramMatch:
        return self.request.ngrams.match([*self.copied, *self.tokens])


class MixedDrafter(CopyingModelDrafter, ChainDrafter):
    """Chooses the sources of every request's round (:mod:`~specpilot.controllers.length.draft_sources`)."""

    def __init__(self, model: LanguageModel, vocab_size: int, options: Ngram) -> None:
        super().__init__(model, vocab_size, options)
        self.joined = not self.reads_states  # copied tokens have no states yet

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        chains = [self._chain(request) for request in requests]
        self.extend(chains)
        return [self._joined(chain) for chain in chains]

    def _chain(self, request: Request) -> ContinuedChain:
        reach = self.reach(request)
        plan, copied = self.texts[request].plan(reach if self.unread(request) else 0)
        ended = bool(copied) and copied[-1] in request.stop_tokens
        unread = self.unread(request, copied) if plan.model and not ended else []
        return ContinuedChain(request, unread, reach, copied)

    def _joined(self, chain: ContinuedChain) -> Draft:
        own, copied = chain.draft(), chain.copied
        if not copied:
            return own
        q = [*point_masses(copied, self.vocab_size, self.model.device), *own.distributions]
        return Draft.chain([*copied, *own.tokens], q, own.n_forwards, len(copied))

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if request not in self.texts:  # the round in which it joins
            return
        if request in self.cache and self.cache.length(request) > self.trunk(request):
            super().commit(request, draft, path)
        self.texts[request].end_round(draft, len(path))


class MixedTreeDrafter(CopyingModelDrafter, BestFirstDrafter):
    """Chooses between the sources of every request's round (:mod:`~specpilot.controllers.length.draft_sources`).

    Trees have copies among their nodes as well, one at a node; a copy alone needs no forward of the draft.
    """

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        found: dict[Request, Draft] = {}
        growing = []
        for request in requests:
            plan, copied = self.texts[request].plan(self.reach(request) if self.unread(request) else 0)
            found[request] = NO_DRAFT
            if copied:
                found[request] = copied_draft(copied, self.vocab_size, self.model.device)
            elif plan.model:
                growing.append(request)
        found |= zip(growing, super().propose(growing), strict=True)
        return [found[request] for request in requests]

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if request not in self.texts:  # the round in which it joins
            return
        if not draft.copied:
            super().commit(request, draft, path)
        self.texts[request].end_round(draft, len(path))
