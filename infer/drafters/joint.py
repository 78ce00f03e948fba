"""Drafts by beam search (Qin et al. 2025, §2.1 and Definition 3.1): MTAD's, which the target verifies, and MTJD's.

MTJD's drafts are searched by the target and need no verification. Requests are searched one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..draft import NO_DRAFT, Draft
from ..models import LanguageModel, TextCache, TextReader
from .base import Drafter, ModelDrafter
from .beams import Beams, draft_beams

if TYPE_CHECKING:
    from ..request import Request


def search(
    model: LanguageModel,
    cache: TextCache,
    request: Request,
    unread: list[int],
    beams: Beams,
    length: int,
    size: int,
) -> Draft:
    """The best of ``model``'s beams of at most ``length`` tokens, for a text whose ``unread`` tokens are not cached."""
    return draft_beams(
        TextReader(model, cache, request), unread, beams, length, request.sampling, request.rng,
        vocab_size=size, stop_tokens=request.stop_tokens,
    )  # fmt: skip


class BeamDrafter(ModelDrafter):
    """MTAD: the beam of the largest joint probability under the draft model, ``length`` tokens long (γ)."""

    def __init__(self, model: LanguageModel, vocab_size: int, beams: Beams, length: int) -> None:
        super().__init__(model, vocab_size)
        self.beams, self.length = beams, length

    def room(self, request: Request) -> int:
        return request.budget + self.beams.width * self.length

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [self._draft(request, self.unread(request)) for request in requests]

    def _draft(self, request: Request, unread: list[int]) -> Draft:
        length = min(self.length, request.max_draft)
        if not unread or length < 1:
            return NO_DRAFT
        self.read_prompts([request])
        return search(self.model, self.cache, request, unread, self.beams, length, self.vocab_size)


class JointDrafter(Drafter):
    """MTJD: in each step the target chooses ``length`` tokens (K), its best beam.

    Args:
        cache: the target's cache.
    """

    def __init__(self, target: LanguageModel, cache: TextCache, beams: Beams, length: int) -> None:
        self.target, self.cache, self.length = target, cache, length
        # A step of one token is sampled, since there is no joint choice (after Definition 3.1).
        self.beams = Beams(1) if length == 1 else beams

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        size = self.target.vocab_size
        return [
            replace(
                search(
                    self.target, self.cache, request, request.text[-1:], self.beams,
                    min(self.length, request.max_draft + 1), size,
                ),
                from_target=True,
            )
            for request in requests
        ]  # fmt: skip

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass
