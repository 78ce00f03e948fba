"""Chain drafts: one token after another, until the length controller, the budget or a stop token ends them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...common.errors import InputError
from ...controllers.acceptance.ngram_index import NgramMatch
from ...controllers.length import MAX_DRAFT, Step
from ..distribution import TokenDistribution
from ..draft import NO_DRAFT, Draft
from ..models import EarlyExit, Read, TextCache
from ..request import Request
from .base import ModelDrafter


class Chain:
    """One request's chain while it is drafted.

    Args:
        unread: what the draft model reads next; empty if it cannot.
        reach: maximum depth of the round's draft.
        before: tokens of the round's draft that another source has drafted before the chain.

    Attributes:
        drafting: whether another token is wanted.
        hidden: (1, d) the draft's hidden state that the last token was drawn from.
    """

    def __init__(self, request: Request, unread: list[int], reach: int, before: int = 0) -> None:
        self.request, self.unread = request, unread
        self.longest = min(MAX_DRAFT, reach) - before
        self.tokens: list[int] = []
        self.distributions: list[TokenDistribution] = []
        self.drafting = bool(unread) and self.longest > 0 and request.length.start_round()

    def add(self, q: TokenDistribution, logits: Tensor, hidden: Tensor, kept: Tensor | None) -> None:
        """Draw the next token from ``q``, made of ``logits`` (1, V), which come from ``hidden`` (1, d).

        Args:
            kept: (M,) the only tokens with finite logits; None for all.
        """
        request = self.request
        token = q.sample(0, request.rng)
        self.hidden = hidden
        self.tokens.append(token)
        self.distributions.append(q)
        self.unread = [token]
        self.drafting = (
            len(self.tokens) < self.longest
            and token not in request.stop_tokens
            and request.length.observe(
                Step(
                    len(self.tokens), token, q.of([token])[0], q.probabilities, logits, hidden, self._match,
                    listed=None if q.lists is None else q.lists[0][0], kept=kept,
                )
            )
        )  # fmt: skip

    def _match(self) -> NgramMatch:
        return self.request.ngrams.match(self.tokens)

    def draft(self) -> Draft:
        return Draft.chain(self.tokens, self.distributions) if self.tokens else NO_DRAFT


class ChainDrafter(ModelDrafter):
    """A draft model's chains; requests that have stopped wait for the others of the round."""

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        chains = [Chain(request, self.unread(request), self.reach(request)) for request in requests]
        self.extend(chains)
        return [chain.draft() for chain in chains]

    def read(self, chain: Chain) -> Read:
        """What the draft model reads for the next token of ``chain``."""
        if not chain.tokens:
            return self.read_text(chain.request, chain.unread)
        return Read(chain.request, chain.unread, states=chain.hidden)

    def extend(self, chains: Sequence[Chain]) -> None:
        """Draft ``chains`` to their ends, one forward for the next tokens of all."""
        self.read_prompts([chain.request for chain in chains if chain.drafting])
        while drafting := [chain for chain in chains if chain.drafting]:
            logits, hidden = self.model.forward(self.cache, [self.read(chain) for chain in drafting])
            q = self.distributions([chain.request for chain in drafting], logits, [1] * len(drafting))
            for row, chain in enumerate(drafting):
                try:
                    chain.add(q[row], logits[row : row + 1], hidden[row : row + 1], self.kept)
                except InputError as error:  # this request's alone
                    chain.request.error, chain.drafting = error, False


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
