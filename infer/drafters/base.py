"""The base class of drafters with a model, and the drafter that drafts nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...common.errors import InputError
from ...controllers.length import Fixed
from ...controllers.sampling import SamplingParams, require_finite
from ...models import CausalLM, LanguageModel, Read, TextCache
from ...models.sampled import DraftedTokens, Sampled
from ..core import NO_DRAFT, Draft, Drafter, Request, TokenDistribution
from ..distribution import distributions
from ..random_source import SharedNoise
from ..verify.block import block
from ..verify.invariant import invariant
from ..verify.token_wise import token_wise

MAX_TARGET_STEPS = 16  # maximum number of steps of a target that samples on its device, between two reads by the host


class Autoregressive(Drafter):
    """Drafts nothing: every round is an autoregressive step of the target.

    On an accelerator the target takes up to ``MAX_TARGET_STEPS`` steps before the host reads their tokens. Each step is
    recorded as a round. In the following cases the host reads the token of every step: other requests join or draft, a
    caller waits for each token or observes the rounds, a lossy rule chooses the token, or the requests' sampling
    parameters differ.

    Args:
        target: the target model.
        cache: the target's cache.
    """

    def __init__(self, target: LanguageModel, cache: TextCache) -> None:
        self.target, self.cache = target, cache

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        samplings = {
            device_sampling(request, request.sampling, self.target.vocab_size)._replace(distributions=False)
            for request in requests
        }
        same_sampling = self.is_only_drafter and len(samplings) == 1
        if self.target.reads_drawn and same_sampling and all(map(self._may_run_ahead, requests)):
            drafts = self._run_ahead(requests, samplings.pop())
            if drafts is not None:
                return drafts
        return [NO_DRAFT] * len(requests)

    @staticmethod
    def _may_run_ahead(request: Request) -> bool:
        """Return true if no observer of ``request`` needs its token after every step."""
        # Any length controller except `Fixed` observes every round, also one without drafted tokens.
        observed = request.hooks or request.reads_states or type(request.length) is not Fixed
        return not (observed or request.streamed) and request.verify in (token_wise, block, invariant)

    def _run_ahead(self, requests: Sequence[Request], sampled: Sampled) -> list[Draft] | None:
        """Return drafts of up to ``MAX_TARGET_STEPS`` tokens that the target has sampled; None if it cannot."""
        counts = [min(MAX_TARGET_STEPS, request.remaining) for request in requests]
        reads = [Read(request, request.text[self.cache.length(request) :]) for request in requests]
        drawn, _ = draw_ahead(self.target, self.cache, requests, reads, counts, sampled, MAX_TARGET_STEPS)
        if drawn is None:
            return None
        tokens, chosen = torch.stack([drawn.drawn.double(), drawn.chosen.double()]).tolist()  # (2, K, B)
        drafts = []
        for index, (request, count) in enumerate(zip(requests, counts, strict=True)):
            drawn_chain = Draft.chain([int(step[index]) for step in tokens[:count]], [])
            draft = drawn_chain.with_tokens(drawn_chain.tokens, request.stop_tokens)
            try:
                require_finite(sum(step[index] for step in chosen[: len(draft.tokens)]))
            except InputError as error:
                request.error = error
            drafts.append(replace(draft, from_target=True, sequential=True))
        return drafts


def device_sampling(request: Request, sampling: SamplingParams, vocab_size: int) -> Sampled:
    """Return the settings for sampling tokens of ``request`` on a device.

    Args:
        request: the request, whose random source determines how tokens are drawn.
        sampling: the request's sampling parameters for the target's tokens, or for drafted tokens.
        vocab_size: the target's vocabulary size V.
    """
    shared = isinstance(request.rng, SharedNoise)
    return Sampled(sampling, vocab_size, distributions=not shared, shared=shared)


def draw_ahead(
    model: LanguageModel, cache: TextCache, requests: Sequence[Request], reads: Sequence[Read], counts: Sequence[int],
    sampled: Sampled, steps: int,
) -> tuple[DraftedTokens | None, list[list[float]]]:  # fmt: skip
    """Sample tokens on the model's device with the requests' random numbers, before the host reads any of the tokens.

    Args:
        model: the model that samples.
        cache: the model's cache.
        requests: the B requests.
        reads: each request's unread tokens.
        counts: number of tokens of each request.
        sampled, steps: as for :meth:`.LanguageModel.draft_unread`.

    Returns:
        The tokens, and the random numbers that drew each request's tokens. If the model cannot do this, the tokens are
        None, the model reads nothing, and the random sources are unchanged.
    """
    sources = [request.source for request in requests]
    numbers = [[source.number(i) for i in range(count)] for source, count in zip(sources, counts, strict=True)]
    drawn = model.draft_unread(cache, reads, counts, numbers, sampled, steps)
    if drawn is None:
        for request, request_numbers in zip(requests, numbers, strict=True):
            request.rng.give_back(request_numbers)
    return drawn, numbers


class ModelDrafter(Drafter):
    """Drafts with a model, whose cache holds a prefix of each request's text between rounds.

    The model reads a request's prompt when the request drafts for the first time, so that a request that never drafts
    costs nothing.

    A model may read the target's states (EAGLE, Li et al. 2024, §4). It then begins a round by reading the tokens that
    the last round added to the text, each with the target's state before the token. It reads a drafted token with the
    draft's state that the token was drawn from. The cache entries of drafted tokens are removed at commit, also those
    of accepted tokens, so that q is a function of the text.

    Args:
        model: the draft model.
        vocab_size: the target's vocabulary size V. A larger draft vocabulary is cut to V tokens.

    Attributes:
        kept_tokens: (M,) the only tokens below V that the model can draft; None if it can draft all.
        cache: the model's cache.
        inputs: the layers that make the model's inputs of the target's states; None for other models.
        reads_states: whether the model reads the target's states.
        skipped: number of first tokens of a text that the model does not read.
    """

    def __init__(self, model: LanguageModel, vocab_size: int) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.kept_tokens = model.kept_tokens_below(vocab_size)
        self.cache = model.new_cache()
        self.inputs = model.state_input if isinstance(model, CausalLM) else None
        self.reads_states = self.inputs is not None
        self.skipped = 0 if self.inputs is None else self.inputs.skipped

    def distributions(
        self, requests: Sequence[Request], logits: Tensor, counts: Sequence[int]
    ) -> list[TokenDistribution]:
        """Return the draft's distributions of each request.

        Args:
            requests: the requests.
            logits: (N, V') the draft's logits: the rows of the first request, then those of the second, and so on.
            counts: the number of rows of each request.
        """
        samplings = [request.draft_sampling for request in requests]
        return distributions(samplings, logits, counts, self.vocab_size, self.kept_tokens)

    def start(self, requests: Sequence[Request]) -> None:
        if self.reads_states:  # the prompt is read with the target's states in the first round that drafts
            for request in requests:
                self.begin(request)

    def growth(self, requests: Sequence[Request]) -> int:
        return self.cache.growth([len(request.prompt) + self.columns_needed(request) for request in requests])

    def begin(self, request: Request) -> list[int]:
        """Add the request to the cache, with room for the tokens that the model can read; return the tokens to read."""
        reserve, context = self.columns_needed(request), self.model.context
        if context is not None and request.budget > context - len(request.prompt):
            reserve += max(0, context - len(request.prompt)) - request.budget
        return self.model.begin(self.cache, request, request.prompt, reserve)

    def trunk(self, request: Request) -> int:
        """Return the number of tokens of the request's text that the model reads."""
        return len(request.text) - self.skipped

    def reach(self, request: Request) -> int:
        """Return the maximum depth of a draft within the budget and the model's context.

        The model does not read the draft's last token, which therefore needs no place in its context.
        """
        context = self.model.context
        return request.max_draft if context is None else min(request.max_draft, context - self.trunk(request) + 1)

    def unread(self, request: Request, copied: Sequence[int] = ()) -> list[int]:
        """Return the tokens that the model reads next: the text's unread tokens after the prompt, then ``copied``.

        The list is empty if the model cannot draft for the request.

        Models with the same tokenizer may pad their vocabularies to different sizes. The request continues without
        drafts if the text has a token outside the draft's vocabulary, or is longer than the draft's context.
        """
        if self.reach(request) < 1:
            request.states = []
            return []
        in_cache = request in self.cache
        tokens = request.text[self.cache.length(request) :] if in_cache else request.output.tokens
        if self.model.vocab_size < self.vocab_size:
            outside_cache = tokens if in_cache else [*request.prompt, *tokens]
            if max([*outside_cache, *copied]) >= self.model.vocab_size:
                return []
        return [*tokens[self.skipped :], *copied]

    def read_text(self, request: Request, unread: Sequence[int]) -> Read:
        """Return the read of the text's ``unread`` tokens, which gives q of the first drafted tokens."""
        if self.inputs is None:
            return Read(request, unread)
        states = self.inputs.from_target(torch.cat(request.states))
        request.states = []
        return Read(request, unread, states=states)

    def read_prompts(self, requests: Sequence[Request]) -> None:
        """Read the prompts of those ``requests`` that draft for the first time."""
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
        """Remove a draft's cache entries except the columns ``accepted``; all of them if the model reads states."""
        self.cache.keep(request, self.trunk(request), [] if self.reads_states else accepted)

    def release(self, request: Request) -> None:
        if request in self.cache:
            self.cache.remove(request)

    def clear(self) -> None:
        self.cache.clear()
