"""Several draft models that form one tree, each with its own branches (SpecInfer, Miao et al. 2024, §3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..draft import Draft, merge
from .base import Drafter

if TYPE_CHECKING:
    from ..request import Request


class SeveralDrafters(Drafter):
    """Joins the drafts of its ``parts`` at their root."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        self.parts = parts
        self.own: dict[Request, list[Draft]] = {}  # drafts of each part in the current round

    def start(self, requests: Sequence[Request]) -> None:
        for part in self.parts:
            part.start(requests)

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        each = [part.propose(requests) for part in self.parts]
        self.own = {request: [drafts[i] for drafts in each] for i, request in enumerate(requests)}
        return [merge(drafts) for drafts in self.own.values()]

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        kept = [draft.tokens[node] for node in path]
        for part, own in zip(self.parts, self.own.get(request, []), strict=False):
            part.commit(request, own, own.follow(kept))

    def release(self, request: Request) -> None:
        self.own.pop(request, None)
        for part in self.parts:
            part.release(request)

    def room(self, request: Request) -> int:
        return sum(part.room(request) for part in self.parts)

    def clear(self) -> None:
        self.own = {}
        for part in self.parts:
            part.clear()
