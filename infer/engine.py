"""The decoding loop: one round at a time for any number of requests.

It is the loop of Leviathan et al. 2023 for any drafter and verifier. ``p`` is the target's distribution, ``q`` the
draft's, both under the same sampling parameters. Under a lossless rule every request's output has the target's
distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..common.errors import InputError
from ..models import LanguageModel
from ..models.memory import free_bytes
from .core import NO_DRAFT, Draft, Drafter, Read, Request, RoundHook, TokenDistribution, TreeMask, Verdict
from .distribution import RowwiseDistribution, distributions, on_host
from .verify.on_device import RULES, Drafted, verify_drawn

NOTHING_READ = TokenDistribution(torch.empty(0, 0), None, 0)


class TargetOutput(NamedTuple):
    """The result of the target's forward for one request that drafted N tokens.

    Attributes:
        p: N + 1 distributions, after the text and after each drafted token.
        states: (n, d + L·d) hidden states, see :meth:`.LanguageModel.forward`: of all tokens of the read if the
            request's drafters read states, otherwise those that ``logits`` come from.
        logits: (N + 1, V) the logits of ``p``.
    """

    p: TokenDistribution
    states: Tensor
    logits: Tensor


class Engine:
    """A target, its cache and its requests. Not thread-safe: the scheduler calls it from one thread at a time.

    Args:
        target: the target model.

    Attributes:
        hooks: called in every round, such as the clock and a router's choice of an arm (:mod:`.hooks`).
    """

    def __init__(self, target: LanguageModel) -> None:
        self.target = target
        self.cache = target.new_cache()
        self.hooks: list[RoundHook] = []
        self.stream: torch.cuda.Stream | None = None  # the stream of the last round on CUDA
        self.free_bytes = partial(free_bytes, target.device)  # returns the free memory, or None if unknown

    def growth(self, requests: Sequence[Request]) -> int:
        """Return the bytes by which the memory of keys and values grows when ``requests`` join together."""
        reserves = [max(arm.drafter.columns_needed(request) for arm in request.arms) for request in requests]
        target_bytes = self.cache.growth(
            [len(request.prompt) + reserve for request, reserve in zip(requests, reserves, strict=True)]
        )
        drafting: dict[Drafter, list[Request]] = {}
        for request in requests:
            for drafter in {arm.drafter for arm in request.arms}:
                drafting.setdefault(drafter, []).append(request)
        return target_bytes + sum(drafter.growth(group) for drafter, group in drafting.items())

    def has_room(self, requests: Sequence[Request]) -> bool:
        """Return true if there is enough free memory for ``requests`` to join together, or if it is unknown."""
        free = self.free_bytes()
        return free is None or self.growth(requests) <= free

    def step(self, requests: Sequence[Request]) -> None:
        """Run one round: every request drafts, one target forward reads all drafts, each request verifies its draft.

        The method must be called in inference mode.

        A joining request drafts nothing; the same forward reads its prompt. Between rounds the caches have a prefix of
        each request's text; the target's cache lacks only the last token.
        """
        self._follow_stream()
        for hook in self.hooks:
            hook.round_started()
        joining = self._join(requests)

        # Step 1: propose. Each request's drafter proposes y_1 … y_K, or a tree of tokens; joining requests have none.
        drafts = self._propose(requests, joining)

        # Step 2: one target forward. It reads all drafts: p_1 … p_{K+1}, after the text and after each drafted token.
        outputs = self._forward(drafts)
        for request in joining:
            for hook in self.hooks:
                hook.prompt_read(request, outputs[request].states[-1])

        # Step 3: verify. Each request's rule chooses the accepted tokens and the token that follows them.
        verified = self._verify(drafts, outputs)

        # Step 4: commit. The caches keep the accepted tokens, and the texts grow by them and the token that follows.
        for request, (draft, verdict) in verified.items():
            self._commit(request, draft, verdict, outputs.get(request), len(drafts[request].tokens))

        self._start_drafting(joining)
        for hook in self.hooks:
            hook.round_ended(drafts, joining)

    def _follow_stream(self) -> None:
        """Order this round after the last one, which another thread may have run on another CUDA stream."""
        if self.target.device.type == "cuda":
            stream = torch.cuda.current_stream(self.target.device)
            if self.stream is not None and self.stream != stream:
                stream.wait_stream(self.stream)
            self.stream = stream

    def _join(self, requests: Sequence[Request]) -> list[Request]:
        """Add the joining requests to the cache, and return them."""
        joining = [request for request in requests if not request.text]
        for request in joining:
            reserve = max(arm.drafter.columns_needed(request) for arm in request.arms)
            request.begin(self.target.begin(self.cache, request, request.prompt, reserve))
        return joining

    def _propose(self, requests: Sequence[Request], joining: Sequence[Request]) -> dict[Request, Draft]:
        """Return every request's draft; requests with the same drafter draft together."""
        drafts: dict[Request, Draft] = dict.fromkeys(joining, NO_DRAFT)
        groups: dict[Drafter, list[Request]] = {}
        for request in requests:
            if request in drafts:
                continue
            request.length.shared_by(len(requests))
            groups.setdefault(request.drafter, []).append(request)
        for drafter, group in groups.items():
            drafter.is_only_drafter = len(group) == len(requests)
            drafts |= zip(group, drafter.propose(group), strict=True)
        if not self.target.reads_drawn:
            drafts = {request: draft.read_back(request.rng, request.stop_tokens) for request, draft in drafts.items()}
        return {request: drafts[request] for request in requests if request.error is None}

    def _forward(self, drafts: dict[Request, Draft]) -> dict[Request, TargetOutput]:
        """Run one target forward for all requests, except those whose drafts the target has already read."""
        reading_requests = [request for request, draft in drafts.items() if not draft.from_target]
        if not reading_requests:
            return {}
        reads = [self._to_read(request, drafts[request]) for request in reading_requests]
        logits, states = self.target.forward(self.cache, reads)
        counts = [read.keep for read in reads]
        p: Sequence[TokenDistribution]
        if len(reading_requests) == 1 and not self.target.on_accelerator and not drafts[reading_requests[0]].is_chain:
            p = [RowwiseDistribution(reading_requests[0].sampling, logits)]
        else:
            p = distributions([request.sampling for request in reading_requests], logits, counts)
            indices = [i for i, request in enumerate(reading_requests) if drafts[request].on_host]
            if indices:
                moved = dict(zip(indices, on_host([p[i] for i in indices]), strict=True))
                p = [moved.get(i, distribution) for i, distribution in enumerate(p)]
        parts = zip(
            p, torch.split(states, [read.kept_states for read in reads]), torch.split(logits, counts), strict=True
        )
        return {request: TargetOutput(*part) for request, part in zip(reading_requests, parts, strict=True)}

    def _to_read(self, request: Request, draft: Draft) -> Read:
        """Return the read of the new tokens of the request's text and of its draft."""
        tokens = [*request.text[self.cache.length(request) :], *draft.tokens]
        tree = None if draft.is_chain else TreeMask.from_parents(len(request.text), draft.parents)
        drawn = draft.drawn.tokens if draft.drawn is not None and draft.drawn.numbers else None
        states = len(tokens) if request.reads_states else None
        return Read(request, tokens, len(draft.tokens) + 1, tree, states, drawn=drawn)

    def _verify(
        self, drafts: dict[Request, Draft], outputs: dict[Request, TargetOutput]
    ) -> dict[Request, tuple[Draft, Verdict]]:
        """Return the drafts, with tokens that the host has read, and their verdicts.

        An error of a request is stored in the request and does not affect the others.
        """
        chains = {
            request: Drafted(
                outputs[request].p, draft, draft.drawn, request.verify, request.source, request.stop_tokens
            )
            for request, draft in drafts.items()
            if draft.drawn is not None and request.verify in RULES
        }
        on_device = dict(zip(chains, verify_drawn([*chains.values()]) if chains else [], strict=True))
        verified: dict[Request, tuple[Draft, Verdict]] = {}
        for request, draft in drafts.items():
            try:
                if draft.sequential:
                    verified[request] = draft, Verdict.chain(len(draft.tokens) - 1, draft.tokens[-1])
                    continue
                if request not in on_device:
                    read = draft.read_back(request.rng, request.stop_tokens)
                    p = outputs[request].p if request in outputs else NOTHING_READ
                    verified[request] = read, request.verify(p, read, request.source)
                    continue
                result = on_device[request]
                if isinstance(result, InputError):
                    raise result
                verified[request] = result
            except InputError as error:
                request.error = error
        return verified

    def _commit(
        self, request: Request, draft: Draft, verdict: Verdict, output: TargetOutput | None, proposed: int
    ) -> None:
        """Add a verified draft to the caches and the text.

        Args:
            request: the request.
            draft: the draft.
            verdict: the result of its verification.
            output: the target's output; None if the target chose the draft's tokens.
            proposed: number of tokens of the draft before it was cut after a stop token.
        """
        start = len(request.text)
        if not draft.from_target:
            self.cache.keep(request, start, [start + node for node in verdict.path])
        if output is not None:
            self._pass_states(
                request, output.states[: len(output.states) - proposed + len(draft.tokens)], draft, verdict
            )
        request.drafter.commit(request, draft, verdict.path)
        request.append(draft, verdict)
        if output is not None:
            for hook in (*self.hooks, *request.hooks):
                hook.verified(request, draft, verdict, output.p, output.logits)

    def _pass_states(self, request: Request, states: Tensor, draft: Draft, verdict: Verdict) -> None:
        """Pass the target's ``states`` (n, d + L·d) to the drafter and the length controller, if they read states."""
        if request.drafter.reads_states:
            request.add_states(states, draft, verdict.path)
        if request.length.reads_target:
            last = 1 + verdict.path[-1] if verdict.path else 0  # the row, after the text's, that gave the token
            request.length.read_target(states[-1 - len(draft.tokens) :, : self.target.hidden_size][last])

    def _start_drafting(self, joining: Sequence[Request]) -> None:
        """Start the chosen arms' drafters for joining requests that have not ended."""
        groups: dict[Drafter, list[Request]] = {}
        for request in joining:
            if not request.finished:
                request.drafting = True
                groups.setdefault(request.drafter, []).append(request)
        for drafter, group in groups.items():
            drafter.start(group)

    @torch.inference_mode()
    def release(self, request: Request) -> None:
        """Remove a request."""
        self.cache.remove(request)
        if request.drafting:
            request.drafter.release(request)

    def clear(self) -> None:
        """Remove all requests, also after an interrupted round."""
        self.cache.clear()
