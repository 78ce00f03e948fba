"""What drafters with a model have in common, and the one that drafts nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...common.errors import InputError
from ...controllers.length import Fixed
from ...controllers.sampling import require_finite
from ...models import CausalLM, LanguageModel, Read, TextCache
from ...models.sampled import DraftedTokens, Sampled
from ..core import NO_DRAFT, Draft, Drafter, Request, TokenDistribution
from ..distribution import distributions
from ..random_source import SharedNoise
from ..verify.block import block
from ..verify.invariant import invariant
from ..verify.token_wise import token_wise

STEPS = 16  # of a target that draws on its device, between two looks of the host


class Autoregressive(Drafter):
    """Drafts nothing: every round is an autoregressive step of the target.

    On an accelerator the target takes up to ``STEPS`` steps before the host looks at their tokens, and each of them is
    recorded as a round. The host looks after every step where other requests join or draft, where someone waits for
    each token or observes the rounds, where a lossy rule chooses the token, or where requests differ in their sampling.

    Args:
        cache: the target's cache.
    """

    def __init__(self, target: LanguageModel, cache: TextCache) -> None:
        self.target, self.cache = target, cache

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        kinds = {sampled_as(request, self.target.vocab_size)._replace(distributions=False) for request in requests}
        together = self.alone and len(kinds) == 1
        if self.target.reads_drawn and together and all(map(self._may_run_ahead, requests)):
            drafts = self._run_ahead(requests, kinds.pop())
            if drafts is not None:
                return drafts
        return [NO_DRAFT] * len(requests)

    @staticmethod
    def _may_run_ahead(request: Request) -> bool:
        # A controller of the user's observes every round, also one of length 0.
        observed = request.hooks or request.reads_states or type(request.length) is not Fixed
        return not (observed or request.streamed) and request.verify in (token_wise, block, invariant)

    def _run_ahead(self, requests: Sequence[Request], sampled: Sampled) -> list[Draft] | None:
        """Up to ``STEPS`` tokens of each request, which the target has drawn; None where it cannot draw them."""
        counts = [min(STEPS, request.remaining) for request in requests]
        reads = [Read(request, request.text[self.cache.length(request) :]) for request in requests]
        drawn, _ = draw_ahead(self.target, self.cache, requests, reads, counts, sampled, STEPS)
        if drawn is None:
            return None
        tokens, chosen = torch.stack([drawn.drawn.double(), drawn.chosen.double()]).tolist()  # (2, K, B)
        drafts = []
        for place, (request, count) in enumerate(zip(requests, counts, strict=True)):
            whole = Draft.chain([int(step[place]) for step in tokens[:count]], [])
            draft = whole.with_tokens(whole.tokens, request.stop_tokens)
            try:
                require_finite(sum(step[place] for step in chosen[: len(draft.tokens)]))
            except InputError as error:
                request.error = error
            drafts.append(replace(draft, from_target=True, one_by_one=True))
        return drafts


def sampled_as(request: Request, vocab_size: int) -> Sampled:
    """The way in which tokens of ``request`` are drawn on a device, over V = ``vocab_size`` tokens."""
    shared = isinstance(request.rng, SharedNoise)
    return Sampled(request.sampling, vocab_size, distributions=not shared, shared=shared)


def draw_ahead(
    model: LanguageModel, cache: TextCache, requests: Sequence[Request], reads: Sequence[Read], counts: Sequence[int],
    sampled: Sampled, steps: int,
) -> tuple[DraftedTokens | None, list[list[float]]]:  # fmt: skip
    """Draw tokens on the model's device with the requests' random numbers, before the host has read any of them.

    Args:
        counts: number of tokens of each request.
        reads: each request's unread tokens.
        sampled, steps: as for :meth:`.LanguageModel.draft_unread`.

    Returns:
        The tokens, and the numbers that each request's were drawn with. Where the model cannot do this, the tokens are
        None, nothing is read, and the random sources are as before.
    """
    sources = [request.source for request in requests]
    numbers = [[source.number(i) for i in range(count)] for source, count in zip(sources, counts, strict=True)]
    drawn = model.draft_unread(cache, reads, counts, numbers, sampled, steps)
    if drawn is None:
        for request, of_request in zip(requests, numbers, strict=True):
            request.rng.give_back(of_request)
    return drawn, numbers


class ModelDrafter(Drafter):
    """Drafts with a model, whose cache holds a prefix of each request's text between rounds.

    A request's prompt is read when it drafts for the first time, so that a request that never drafts costs nothing.

    If the model reads the target's states (EAGLE, Li et al. 2024, §4), a round begins by reading the tokens that were
    added to the text since, each with the target's state before it; a drafted token is read with the draft's own state
    that it was drawn from. The entries of drafted tokens are removed at commit, whether or not the tokens were
    accepted, so that q is a function of the text.

    Args:
        model: the draft model.
        vocab_size: the target's V, to which a larger draft vocabulary is cut.
    """

    def __init__(self, model: LanguageModel, vocab_size: int) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.kept = model.kept_below(vocab_size)
        self.cache = model.new_cache()
        self.inputs = model.state_input if isinstance(model, CausalLM) else None
        self.reads_states = self.inputs is not None
        self.skipped = 0 if self.inputs is None else self.inputs.skipped  # first tokens of a text, which are not read

    def distributions(
        self, requests: Sequence[Request], logits: Tensor, counts: Sequence[int]
    ) -> list[TokenDistribution]:
        """q of each request, from ``counts`` rows each of the model's ``logits`` (N, V')."""
        return distributions([request.sampling for request in requests], logits, counts, self.vocab_size, self.kept)

    def start(self, requests: Sequence[Request]) -> None:
        if self.reads_states:  # the prompt is read with the target's states in the first round that drafts
            for request in requests:
                self.begin(request)

    def growth(self, requests: Sequence[Request]) -> int:
        return self.cache.growth([len(request.prompt) + self.room(request) for request in requests])

    def begin(self, request: Request) -> list[int]:
        """Add the request to the cache, with room for what the model can read; returns the tokens to read."""
        room, context = self.room(request), self.model.context
        if context is not None and request.budget > context - len(request.prompt):
            room += max(0, context - len(request.prompt)) - request.budget
        return self.model.begin(self.cache, request, request.prompt, room)

    def trunk(self, request: Request) -> int:
        """Number of the text's tokens that the model reads."""
        return len(request.text) - self.skipped

    def reach(self, request: Request) -> int:
        """Maximum depth of a draft, whose last token is not read: to the end of the budget and the model's context."""
        context = self.model.context
        return request.max_draft if context is None else min(request.max_draft, context - self.trunk(request) + 1)

    def unread(self, request: Request, copied: Sequence[int] = ()) -> list[int]:
        """The tokens to read after the prompt: the text's unread ones and ``copied``; empty if the draft cannot.

        Vocabularies of one tokenizer may be padded differently. If the prompt has a token outside the draft's
        vocabulary, or the target emits one, or the text leaves the draft's context, the request continues without
        drafts.
        """
        if self.reach(request) < 1:
            request.states = []
            return []
        read = request in self.cache
        tokens = request.text[self.cache.length(request) :] if read else request.output.tokens
        if self.model.vocab_size < self.vocab_size:
            seen = tokens if read else [*request.prompt, *tokens]
            if max([*seen, *copied]) >= self.model.vocab_size:
                return []
        return [*tokens[self.skipped :], *copied]

    def read_text(self, request: Request, unread: Sequence[int]) -> Read:
        """What the model reads for the first drafted tokens: the text's ``unread`` tokens."""
        if self.inputs is None:
            return Read(request, unread)
        states = self.inputs.from_target(torch.cat(request.states), beginning=not self.cache.length(request))
        request.states = []
        return Read(request, unread, states=states)

    def read_prompts(self, requests: Sequence[Request]) -> None:
        """Read the prompts of those of ``requests`` that draft for the first time."""
        started = time.perf_counter()
        new = [request for request in requests if request not in self.cache]
        if not new:
            return
        self.model.forward(self.cache, [Read(request, self.begin(request)) for request in new])
        seconds = time.perf_counter() - started
        for request in new:
            request.output.stats.prefill_seconds += seconds
            request.output.stats.seconds -= seconds  # the round's time, which the engine adds, includes it

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if draft.tokens:
            start, read = self.trunk(request), self.cache.length(request)
            self.roll_back(request, [start + node for node in path if start + node < read])

    def roll_back(self, request: Request, accepted: Sequence[int]) -> None:
        """Remove what was read of a draft, but for the columns ``accepted``, unless it was read with own states."""
        self.cache.keep(request, self.trunk(request), [] if self.reads_states else accepted)

    def release(self, request: Request) -> None:
        if request in self.cache:
            self.cache.remove(request)

    def clear(self) -> None:
        self.cache.clear()
