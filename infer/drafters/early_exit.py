"""Chains drafted by the target's first layers in the target's cache; the target overwrites their entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..draft import Draft
from ..models import EarlyExit, TextCache
from .chain import ChainDrafter

if TYPE_CHECKING:
    from ..request import Request


class EarlyExitDrafter(ChainDrafter):
    """Drafts with an early exit; afterwards the cache has its previous length.

    Args:
        cache: the target's cache.
    """

    def __init__(self, model: EarlyExit, vocab_size: int, cache: TextCache) -> None:
        super().__init__(model, vocab_size)
        self.cache = cache

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        drafts = super().propose(requests)
        for request in requests:
            self.cache.crop_text(request, len(request.text) - 1)
        return drafts

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass

    def clear(self) -> None:
        pass
