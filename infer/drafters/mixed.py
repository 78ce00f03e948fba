"""Drafts by n-grams or by a draft model; predicted acceptance and cost select the source in each round.

:class:`MixedDrafter` drafts a copy, the model's chain, or a copy and the model's chain after it.
:class:`MixedTreeDrafter` drafts a copy or a rate-optimal tree. :mod:`~specpilot.controllers.length.draft_sources`
selects the source.
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
    """Base class of drafters that copy from the text or draft with a model."""

    with_model = True

    def __init__(self, model: LanguageModel, vocab_size: int, options: Ngram) -> None:
        super().__init__(model, vocab_size)
        self.copy_by(options)


class ContinuedChain(Chain):
    """The model's chain after ``copied`` tokens; the length controller observes the model's tokens only."""

    def __init__(self, request: Request, unread: list[int], reach: int, copied: list[int]) -> None:
        self.copied = copied
        super().__init__(request, unread, reach, len(copied))

    def _match(self) -> NgramMatch:
        return self.request.ngrams.match([*self.copied, *self.tokens])


class MixedDrafter(CopyingModelDrafter, ChainDrafter):
    """Drafts chains, whose sources are selected in every round (:mod:`~specpilot.controllers.length.draft_sources`)."""

    def __init__(self, model: LanguageModel, vocab_size: int, options: Ngram) -> None:
        super().__init__(model, vocab_size, options)
        self.joined = not self.reads_states  # the target has not computed states of copied tokens yet

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        chains = [self._chain(request) for request in requests]
        self.extend(chains)
        return [self._joined(chain) for chain in chains]

    def _chain(self, request: Request) -> ContinuedChain:
        """Return the request's chain before its first token; it does not draft if the round only copies."""
        reach = self.reach(request)
        plan, copied = self.texts[request].plan(reach if self.unread(request) else 0)
        ended = bool(copied) and copied[-1] in request.stop_tokens
        unread = self.unread(request, copied) if plan.model and not ended else []
        chain = ContinuedChain(request, unread, reach, copied)
        if chain.drafting or copied or not plan.model:
            return chain
        # The length controller does not draft in this round, so the round copies if copies alone pay.
        return ContinuedChain(request, [], reach, self.texts[request].plan()[1])

    def _joined(self, chain: ContinuedChain) -> Draft:
        """Return the copied tokens and the model's tokens as one draft."""
        model_draft, copied = chain.draft(), chain.copied
        if not copied:
            return model_draft
        q = [*point_masses(copied, self.vocab_size, self.model.device), *model_draft.distributions]
        return Draft.chain([*copied, *model_draft.tokens], q, model_draft.n_forwards, len(copied))

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if request not in self.texts:  # the round in which it joins
            return
        if request in self.cache and self.cache.length(request) > self.trunk(request):
            super().commit(request, draft, path)
        self.texts[request].end_round(draft, len(path))


class MixedTreeDrafter(CopyingModelDrafter, BestFirstDrafter):
    """Drafts copies or trees, as selected in every round (:mod:`~specpilot.controllers.length.draft_sources`).

    A tree may have one copied token among the children of each node. A draft of copies needs no forward of the draft
    model.
    """

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        drafts: dict[Request, Draft] = {}
        growing = []
        for request in requests:
            plan, copied = self.texts[request].plan(self.reach(request) if self.unread(request) else 0)
            drafts[request] = NO_DRAFT
            if copied:
                drafts[request] = copied_draft(copied, self.vocab_size, self.model.device)
            elif plan.model:
                growing.append(request)
        for request, tree in zip(growing, super().propose(growing), strict=True):
            # If the length controller does not draft in this round, the round copies if copies alone pay.
            copied = [] if tree.tokens else self.texts[request].plan()[1]
            drafts[request] = copied_draft(copied, self.vocab_size, self.model.device) if copied else tree
        return [drafts[request] for request in requests]

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if request not in self.texts:  # the round in which it joins
            return
        if not draft.copied:
            super().commit(request, draft, path)
        self.texts[request].end_round(draft, len(path))
