"""N-gram drafts and rate-optimal trees: for each round a copy, or a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...controllers.length import MAX_DRAFT
from ..draft import NO_DRAFT, Draft
from ..models import LanguageModel
from .best_first_tree import BestFirstDrafter
from .ngram import CopyCosts, Ngram, TextCopies, copied_draft

if TYPE_CHECKING:
    from ..request import Request


class MixedTreeDrafter(BestFirstDrafter):
    """Chooses between the sources of every request's round (:mod:`~specpilot.controllers.length.draft_sources`).

    Trees have copies among their nodes as well, one at a node; a copy alone needs no forward of the draft.
    """

    def __init__(self, model: LanguageModel, vocab_size: int, options: Ngram) -> None:
        super().__init__(model, vocab_size)
        self.options, self.costs = options, CopyCosts(options)
        self.texts: dict[Request, TextCopies] = {}

    def start(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.texts[request] = TextCopies(request, self.options, self.costs, model=True, joined=False)

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        found: dict[Request, Draft] = {}
        growing = []
        for request in requests:
            text = self.texts[request]
            run, tokens = text.available(request)
            plan = text.sources.plan(run, len(tokens), min(MAX_DRAFT, request.max_draft))
            found[request] = NO_DRAFT
            if plan.copies:
                found[request] = copied_draft(tokens[: plan.copies], self.vocab_size, self.model.device)
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

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:
        self.costs.add(tokens, forwards, seconds)

    def release(self, request: Request) -> None:
        super().release(request)
        self.texts.pop(request, None)

    def clear(self) -> None:
        super().clear()
        self.texts.clear()
