"""N-gram drafts and rate-optimal trees: for each round a copy, or a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..draft import NO_DRAFT, Draft
from .best_first_tree import BestFirstDrafter
from .copying import CopyingDrafter
from .ngram import copied_draft

if TYPE_CHECKING:
    from ..request import Request


class MixedTreeDrafter(CopyingDrafter, BestFirstDrafter):
    """Chooses between the sources of every request's round (:mod:`~specpilot.controllers.length.draft_sources`).

    Trees have copies among their nodes as well, one at a node; a copy alone needs no forward of the draft.
    """

    joined = False

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        found: dict[Request, Draft] = {}
        growing = []
        for request in requests:
            plan, copied = self.texts[request].plan()
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
