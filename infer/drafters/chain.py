"""Chain drafts: one token after another, until the length controller, the budget or a stop token ends them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ...common.errors import InputError
from ...controllers.acceptance.ngram_index import NgramMatch
from ...controllers.acceptance.step import signals_tensor
from ...controllers.length import MAX_DRAFT, Step
from ...controllers.sampling import require_finite
from ...models import EarlyExit, Read, TextCache
from ...models.sampled import DraftedTokens
from ..core import NO_DRAFT, Draft, Drawn, Request, TokenDistribution
from ..distribution import draw_unread
from .base import ModelDrafter, draw_ahead, sampled_as


class Chain:
    """One request's chain while it is drafted.

    Args:
        unread: what the draft model reads next; empty if it cannot.
        reach: maximum depth of the round's draft.
        before: tokens of the round's draft that another source has drafted before the chain.

    Attributes:
        planned: number of tokens, if it depends on none of them and the host need not read them; otherwise None.
        drawn: token and q(token), (1,) each, that were drawn on the device.
        numbers: the numbers they were drawn with.
        source: draws the chain's tokens.
        drafting: whether another token is wanted.
        hidden: (1, d) the draft's hidden state that the last token was drawn from.
    """

    def __init__(self, request: Request, unread: list[int], reach: int, before: int = 0) -> None:
        self.request, self.unread = request, unread
        self.longest = min(MAX_DRAFT, reach) - before
        self.tokens: list[int] = []
        self.distributions: list[TokenDistribution] = []
        self.drawn: list[tuple[Tensor, Tensor]] = []
        self.numbers: list[float] = []
        self.source = request.rng.at(len(request.text) + before)
        self.drafting = bool(unread) and self.longest > 0 and request.length.start_round()
        # A request's hooks may read what its length controller computed of each token.
        self.planned = request.length.planned if self.drafting and not request.hooks and not before else None

    def add(self, q: TokenDistribution, logits: Tensor, hidden: Tensor, kept: Tensor | None) -> None:
        """Draw the next token from ``q``, made of ``logits`` (1, V), which come from ``hidden`` (1, d).

        Args:
            kept: (M,) the only tokens with finite logits; None for all.
        """
        token = self.source.token(q, 0, len(self.tokens))
        listed = None if q.lists is None else q.lists[0][0]
        self._ask(token, q.of([token])[0], q, logits, hidden, listed=listed, kept=kept)

    def add_drawn(self, drawn: tuple[Tensor, Tensor], number: float, q: TokenDistribution, hidden: Tensor) -> bool:
        """Add a token (1,) that was drawn on the device, and its probability (1,).

        Returns:
            Whether the host has to read the token for :meth:`add_read`: the length is not planned.
        """
        self.drawn.append(drawn)
        if self.planned is None:
            return True
        self.numbers.append(number)
        self._append(0, q, hidden)
        self.drafting = len(self.tokens) < min(self.longest, self.planned)
        return False

    def add_drafted(
        self, drafted: DraftedTokens, place: int, count: int, numbers: list[float], vocab_size: int
    ) -> None:
        """Add ``count`` tokens that were drawn on the device with ``numbers``: text ``place`` of ``drafted``."""
        of_text = slice(place, place + 1)
        for step in range(count):
            q = TokenDistribution(drafted.probabilities[step, of_text], drafted.tokens[step, of_text], vocab_size)
            self.drawn.append((drafted.drawn[step, of_text], drafted.chosen[step, of_text]))
            self.tokens.append(0)
            self.distributions.append(q)
        self.numbers, self.drafting = numbers, False

    def add_read(
        self, numbers: list[float], q: TokenDistribution, logits: Tensor, hidden: Tensor, kept: Tensor | None
    ) -> None:
        """The host has read the ``numbers`` of the token.

        These are the token, q(token), its draft signals, and what the controller's predictor computes of ``hidden``.
        """
        token, probability, confidence, top, entropy, *of_state = numbers
        require_finite(probability)
        known = confidence, top, entropy
        self._ask(int(token), probability, q, logits, hidden, kept=kept, known=known, of_state=of_state or None)

    def _append(self, token: int, q: TokenDistribution, hidden: Tensor) -> None:
        self.hidden = hidden
        self.tokens.append(token)
        self.distributions.append(q)
        self.unread = [token]

    def _ask(
        self, token: int, probability: float, q: TokenDistribution, logits: Tensor, hidden: Tensor, **known: Any
    ) -> None:
        """Append a token, and ask the length controller whether to draft another after it."""
        self._append(token, q, hidden)
        step = Step(len(self.tokens), token, probability, q.probabilities, logits, hidden, self._match, **known)
        self.drafting = (
            len(self.tokens) < self.longest
            and token not in self.request.stop_tokens
            and self.request.length.observe(step)
        )

    def _match(self) -> NgramMatch:
        return self.request.ngrams.match(self.tokens)

    def draft(self) -> Draft:
        if not self.tokens:
            return NO_DRAFT
        draft = Draft.chain(self.tokens, self.distributions)
        if not self.drawn:
            return draft
        tokens, q = (torch.cat(one) for one in zip(*self.drawn, strict=True))
        return replace(draft, drawn=Drawn(tokens, q, self.numbers))


@contextmanager
def failing_alone(chain: Chain) -> Iterator[None]:
    """An error of the block fails the chain's request, and no other of the round."""
    try:
        yield
    except InputError as error:
        chain.request.error, chain.drafting = error, False


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
        drawn = chain.drawn[-1][0] if chain.numbers else None
        return Read(chain.request, chain.unread, states=chain.hidden, drawn=drawn)

    def extend(self, chains: Sequence[Chain]) -> None:
        """Draft ``chains`` to their ends, one forward for the next tokens of all."""
        self.read_prompts([chain.request for chain in chains if chain.drafting])
        if self.model.reads_drawn and not self.reads_states:  # reading states uses them up
            self._draft_planned([chain for chain in chains if chain.drafting])
        while drafting := [chain for chain in chains if chain.drafting]:
            logits, hidden = self.model.forward(self.cache, [self.read(chain) for chain in drafting])
            q = self.distributions([chain.request for chain in drafting], logits, [1] * len(drafting))
            if self.model.reads_drawn:
                self._draw(drafting, q, logits, hidden)
                continue
            for row, chain in enumerate(drafting):
                with failing_alone(chain):
                    chain.add(q[row], logits[row : row + 1], hidden[row : row + 1], self.kept)

    def _draft_planned(self, chains: Sequence[Chain]) -> None:
        """Draft whole chains at once, if all lengths are planned, the sampling is the same, and the model can do it."""
        samplings = {sampled_as(chain.request, self.vocab_size) for chain in chains}
        counts = [min(chain.longest, chain.planned or 0) for chain in chains]
        if len(samplings) != 1 or not all(counts):
            return
        requests, reads = [chain.request for chain in chains], [self.read(chain) for chain in chains]
        drafted, numbers = draw_ahead(self.model, self.cache, requests, reads, counts, samplings.pop(), MAX_DRAFT)
        if drafted is None:
            return
        for place, (chain, count, of_chain) in enumerate(zip(chains, counts, numbers, strict=True)):
            chain.add_drafted(drafted, place, count, of_chain, self.vocab_size)

    def _draw(self, chains: Sequence[Chain], q: list[TokenDistribution], logits: Tensor, hidden: Tensor) -> None:
        """Draw the next tokens on the device; the host reads those of chains whose length they decide, all at once.

        What these are decided by is computed for all chains together, since each operation is a launch.
        """
        numbers = [chain.source.number(len(chain.tokens)) for chain in chains]
        asked: list[int] = []
        parts: list[tuple[list[int], Tensor]] = []  # n rows, and (n, m) numbers for them
        for rows, together, tokens, chosen in draw_unread(q, numbers):
            asking = []
            for place, row in enumerate(rows):
                drawn = tokens[place : place + 1], chosen[place : place + 1]
                if chains[row].add_drawn(drawn, numbers[row], q[row], hidden[row : row + 1]):
                    asking.append(row)
            if asking:
                asked += asking
                signals = signals_tensor(tokens, chosen, together.probabilities, rows_of(logits, rows))
                parts += [(rows, torch.stack([tokens.double(), chosen.double()], -1)), (rows, signals)]
        if not asked:
            return
        controllers: dict[int, list[int]] = {}
        for row in sorted(asked):
            controllers.setdefault(id(chains[row].request.shared_length), []).append(row)
        for rows in controllers.values():
            of_state = chains[rows[0]].request.length.of_state(rows_of(hidden, rows))
            if of_state is not None:
                parts.append((rows, of_state))
        read = iter(torch.cat([values.double().flatten() for _, values in parts]).tolist())
        known: dict[int, list[float]] = {row: [] for row in range(len(chains))}
        for rows, values in parts:
            for row in rows:
                known[row] += islice(read, values.shape[1])
        for row in asked:
            with failing_alone(chains[row]):
                chains[row].add_read(known[row], q[row], logits[row : row + 1], hidden[row : row + 1], self.kept)


def rows_of(values: Tensor, rows: Sequence[int]) -> Tensor:
    """``rows``, which ascend, of ``values``, without an index that the device would wait for."""
    return values if len(rows) == len(values) else torch.cat([values[row : row + 1] for row in rows])


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

    def growth(self, requests: Sequence[Request]) -> int:
        return 0  # of the target's cache

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass

    def clear(self) -> None:
        pass
