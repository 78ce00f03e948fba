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
from .base import ModelDrafter, device_sampling, draw_ahead


class Chain:
    """One request's chain while it is drafted.

    Args:
        request: the request.
        unread: the tokens that the draft model reads next; empty if it cannot draft.
        reach: maximum depth of the round's draft.
        before: number of tokens that another source has drafted before the chain in this round.

    Attributes:
        longest: maximum number of tokens of the chain.
        tokens: the drafted tokens; 0 in place of a token that the host has not read.
        distributions: the distribution that each token was drawn from.
        planned: the number of tokens if it does not depend on the tokens, so that the host need not read them;
            otherwise None.
        drawn: tokens and q(token), (1,) each, that were drawn on the device.
        numbers: the random numbers that drew them, if the host has not read them.
        source: the random source of the chain's tokens.
        drafting: whether the chain needs another token.
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

    def add(self, q: TokenDistribution, logits: Tensor, hidden: Tensor, kept_tokens: Tensor | None) -> None:
        """Draw the next token and append it.

        Args:
            q: the token's distribution, with one row.
            logits: (1, V) the logits of ``q``.
            hidden: (1, d) the draft's hidden state that ``logits`` were computed from.
            kept_tokens: (M,) the only tokens with finite logits; None for all.
        """
        token = self.source.token(q, 0, len(self.tokens))
        listed = None if q.lists is None else q.lists[0][0]
        self._ask(token, q.of([token])[0], q, logits, hidden, listed=listed, kept_tokens=kept_tokens)

    def add_drawn(self, drawn: tuple[Tensor, Tensor], number: float, q: TokenDistribution, hidden: Tensor) -> bool:
        """Add a token that was drawn on the device.

        Args:
            drawn: the token (1,) and its probability (1,).
            number: the random number that drew the token.
            q, hidden: as for :meth:`add`.

        Returns:
            True if the length is not planned, so that the host has to read the token for :meth:`add_read`.
        """
        self.drawn.append(drawn)
        if self.planned is None:
            return True
        self.numbers.append(number)
        self._append(0, q, hidden)
        self.drafting = len(self.tokens) < min(self.longest, self.planned)
        return False

    def add_drafted(
        self, drafted: DraftedTokens, index: int, count: int, numbers: list[float], vocab_size: int
    ) -> None:
        """Add ``count`` tokens that were drawn on the device.

        Args:
            drafted: the tokens of several texts.
            index: index of the request's text in ``drafted``.
            numbers: the random numbers that drew the tokens.
            vocab_size: the target's vocabulary size V.
        """
        column = slice(index, index + 1)
        for step in range(count):
            q = TokenDistribution(drafted.probabilities[step, column], drafted.tokens[step, column], vocab_size)
            self.drawn.append((drafted.drawn[step, column], drafted.chosen[step, column]))
            self.tokens.append(0)
            self.distributions.append(q)
        self.numbers, self.drafting = numbers, False

    def add_read(
        self, numbers: list[float], q: TokenDistribution, logits: Tensor, hidden: Tensor, kept_tokens: Tensor | None
    ) -> None:
        """Append the last token of :meth:`add_drawn`, which the host has read.

        Args:
            numbers: the token, q(token), its three draft signals, and the state values of the controller's predictor.
            q, logits, hidden, kept_tokens: as for :meth:`add`.
        """
        token, probability, confidence, top, entropy, *state_values = numbers
        require_finite(probability)
        draft_signals = confidence, top, entropy
        self._ask(
            int(token),
            probability,
            q,
            logits,
            hidden,
            kept_tokens=kept_tokens,
            draft_signals=draft_signals,
            state_values=state_values or None,
        )

    def _append(self, token: int, q: TokenDistribution, hidden: Tensor) -> None:
        """Append a token."""
        self.hidden = hidden
        self.tokens.append(token)
        self.distributions.append(q)
        self.unread = [token]

    def _ask(
        self, token: int, probability: float, q: TokenDistribution, logits: Tensor, hidden: Tensor, **step_fields: Any
    ) -> None:
        """Append a token, and set ``drafting`` by the length controller's decision.

        Args:
            step_fields: optional fields of the :class:`.Step` that the controller observes.
        """
        self._append(token, q, hidden)
        step = Step(len(self.tokens), token, probability, q.probabilities, logits, hidden, self._match, **step_fields)
        self.drafting = (
            len(self.tokens) < self.longest
            and token not in self.request.stop_tokens
            and self.request.length.observe(step)
        )

    def _match(self) -> NgramMatch:
        """Return the n-gram match of the last token."""
        return self.request.ngrams.match(self.tokens)

    def draft(self) -> Draft:
        """Return the drafted chain."""
        if not self.tokens:
            return NO_DRAFT
        draft = Draft.chain(self.tokens, self.distributions)
        if not self.drawn:
            return draft
        tokens, q = (torch.cat(parts) for parts in zip(*self.drawn, strict=True))
        return replace(draft, drawn=Drawn(tokens, q, self.numbers))


@contextmanager
def isolated_errors(chain: Chain) -> Iterator[None]:
    """Let an error in the block fail the chain's request, but no other request of the round."""
    try:
        yield
    except InputError as error:
        chain.request.error, chain.drafting = error, False


class ChainDrafter(ModelDrafter):
    """Drafts chains with a draft model; a request whose chain has ended waits for the other chains of the round."""

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        chains = [Chain(request, self.unread(request), self.reach(request)) for request in requests]
        self.extend(chains)
        return [chain.draft() for chain in chains]

    def read(self, chain: Chain) -> Read:
        """Return the read that gives the next token of ``chain``."""
        if not chain.tokens:
            return self.read_text(chain.request, chain.unread)
        drawn = chain.drawn[-1][0] if chain.numbers else None
        return Read(chain.request, chain.unread, states=chain.hidden, drawn=drawn)

    def extend(self, chains: Sequence[Chain]) -> None:
        """Draft ``chains`` to their ends, with one forward for the next tokens of all chains."""
        self.read_prompts([chain.request for chain in chains if chain.drafting])
        if self.model.reads_drawn and not self.reads_states:  # reading states uses them up
            self._draft_planned([chain for chain in chains if chain.drafting])
        while drafting := [chain for chain in chains if chain.drafting]:
            for chain in drafting:
                chain.request.length.drafting_with(len(drafting))
            logits, hidden = self.model.forward(self.cache, [self.read(chain) for chain in drafting])
            q = self.distributions([chain.request for chain in drafting], logits, [1] * len(drafting))
            if self.model.reads_drawn:
                self._draw(drafting, q, logits, hidden)
                continue
            for row, chain in enumerate(drafting):
                with isolated_errors(chain):
                    chain.add(q[row], logits[row : row + 1], hidden[row : row + 1], self.kept_tokens)

    def _draft_planned(self, chains: Sequence[Chain]) -> None:
        """Draft whole chains at once if all lengths are planned, all samplings are equal, and the model can do it."""
        samplings = {device_sampling(chain.request, chain.request.draft_sampling, self.vocab_size) for chain in chains}
        counts = [min(chain.longest, chain.planned or 0) for chain in chains]
        if len(samplings) != 1 or not all(counts):
            return
        requests, reads = [chain.request for chain in chains], [self.read(chain) for chain in chains]
        drafted, numbers = draw_ahead(self.model, self.cache, requests, reads, counts, samplings.pop(), MAX_DRAFT)
        if drafted is None:
            return
        for index, (chain, count, chain_numbers) in enumerate(zip(chains, counts, numbers, strict=True)):
            chain.add_drafted(drafted, index, count, chain_numbers, self.vocab_size)

    def _draw(self, chains: Sequence[Chain], q: list[TokenDistribution], logits: Tensor, hidden: Tensor) -> None:
        """Draw the next tokens on the device. The host reads, at once, the tokens of chains with an unplanned length.

        The inputs of the length decisions are computed for all chains together, because each operation on a GPU is a
        kernel launch.
        """
        numbers = [chain.source.number(len(chain.tokens)) for chain in chains]
        unread: list[int] = []
        parts: list[tuple[list[int], Tensor]] = []  # n rows, and their numbers (n, m)
        for rows, together, tokens, chosen in draw_unread(q, numbers):
            unread_rows = []
            for index, row in enumerate(rows):
                drawn = tokens[index : index + 1], chosen[index : index + 1]
                if chains[row].add_drawn(drawn, numbers[row], q[row], hidden[row : row + 1]):
                    unread_rows.append(row)
            if unread_rows:
                unread += unread_rows
                signals = signals_tensor(tokens, chosen, together.probabilities, select_rows(logits, rows))
                parts += [(rows, torch.stack([tokens.double(), chosen.double()], -1)), (rows, signals)]
        if not unread:
            return
        controllers: dict[int, list[int]] = {}
        for row in sorted(unread):
            controllers.setdefault(id(chains[row].request.shared_length), []).append(row)
        for rows in controllers.values():
            state_values = chains[rows[0]].request.length.state_values(select_rows(hidden, rows))
            if state_values is not None:
                parts.append((rows, state_values))
        read = iter(torch.cat([values.double().flatten() for _, values in parts]).tolist())
        numbers_read: dict[int, list[float]] = {row: [] for row in range(len(chains))}
        for rows, values in parts:
            for row in rows:
                numbers_read[row] += islice(read, values.shape[1])
        for row in unread:
            with isolated_errors(chains[row]):
                chains[row].add_read(
                    numbers_read[row], q[row], logits[row : row + 1], hidden[row : row + 1], self.kept_tokens
                )


def select_rows(values: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the ascending ``rows`` of ``values`` without an index tensor, whose transfer would delay the device."""
    return values if len(rows) == len(values) else torch.cat([values[row : row + 1] for row in rows])


class EarlyExitDrafter(ChainDrafter):
    """Drafts with the target's first layers; afterwards the target's cache has its previous length.

    Args:
        model: the early exit of the target.
        vocab_size: the target's vocabulary size V.
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
