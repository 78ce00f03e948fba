"""The decoding loop: one round at a time for any number of requests.

The loop of Leviathan et al. 2023, whatever is drafted and however it is verified. ``p`` is the target, ``q`` the draft,
both under the same sampling parameters; under a lossless rule the law of every request's output is the target's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..controllers.errors import InputError
from .distribution import TokenDistribution, distributions
from .draft import NO_DRAFT, Draft
from .models import LanguageModel, Read
from .prefill import read_prompts

if TYPE_CHECKING:
    from ..controllers.router import Router
    from .drafters import Drafter
    from .request import Request

NOTHING_READ = TokenDistribution(torch.empty(0, 0), None, 0)


class Engine:
    """A target, its cache, and what happens to requests between joining and leaving.

    Not for several threads at once: the scheduler calls it from one at a time.

    Args:
        target: what verifies.
        router: chooses each request's arm by its prompt's embedding; None where requests have one arm.
    """

    def __init__(self, target: LanguageModel, router: Router | None = None) -> None:
        self.target, self.router = target, router
        self.cache = target.new_cache()

    @torch.inference_mode()
    def step(self, requests: Sequence[Request]) -> None:
        """One round: every request drafts, one target forward reads all drafts, each request verifies its own.

        Between rounds the caches hold a prefix of each request's text; the target's lacks exactly the last token.
        """
        started = time.perf_counter()
        drafts = self._propose(requests)  # y_1 … y_K, or a tree of them, for each request
        p = self._read(drafts)  # p_1 … p_{K+1}, after the text and after each drafted token
        for request, draft in drafts.items():
            try:
                verdict = request.verify(p.get(request, NOTHING_READ), draft, request.rng)
            except InputError as error:  # this request's alone
                request.error = error
                continue
            start = len(request.text)
            if not draft.from_target:
                self.cache.keep(request, start, [start + node for node in verdict.path])
            request.drafter.commit(request, draft, verdict.path)
            request.append(draft, verdict)
        self._clock(drafts, time.perf_counter() - started)

    def _propose(self, requests: Sequence[Request]) -> dict[Request, Draft]:
        """Every request's draft; requests of one drafter are drafted for together."""
        groups: dict[Drafter, list[Request]] = {}
        for request in requests:
            length = len(request.text)
            request.max_draft = request.remaining - 1  # the token after the draft is the target's own
            for limit in (self.target.draft_limit(length), request.drafter.draft_limit(length)):
                if limit is not None:
                    request.max_draft = min(request.max_draft, limit)
            groups.setdefault(request.drafter, []).append(request)
        found: dict[Request, Draft] = {}
        for drafter, group in groups.items():
            found |= zip(group, drafter.propose(group), strict=True)
        return {request: found[request] for request in requests if request.error is None}

    def _read(self, drafts: dict[Request, Draft]) -> dict[Request, TokenDistribution]:
        """The target's distributions after each text's last token and each drafted token, in one forward."""
        reads = [
            Read(request, [request.text[-1], *draft.tokens], len(draft.tokens) + 1, draft.tree_mask(len(request.text)))
            for request, draft in drafts.items()
            if not draft.from_target
        ]
        if not reads:
            return {}
        logits, _ = self.target.forward(self.cache, reads)
        verified = [request for request, draft in drafts.items() if not draft.from_target]
        counts = [read.keep for read in reads]
        return dict(zip(verified, distributions([r.sampling for r in verified], logits, counts), strict=True))

    def _clock(self, drafts: dict[Request, Draft], seconds: float) -> None:
        """Count the round's time: every request waited for the forwards of all."""
        controllers: dict[int, Request] = {}
        for request in drafts:
            request.output.stats.seconds += seconds
            controllers.setdefault(id(request.shared_length), request)
        longest = max((len(draft.tokens) for draft in drafts.values()), default=0)
        for request in controllers.values():  # what requests learn of the machine they share
            request.length.timed(longest, seconds)

    @torch.inference_mode()
    def prefill(self, requests: Sequence[Request]) -> None:
        """Requests join: the target reads their prompts, and the last distribution of each gives a token.

        The last hidden state is the prompt's embedding, by which a router chooses the arm.
        """
        started = time.perf_counter()
        prompts = {request: request.prompt for request in requests}
        results = read_prompts(self.target, self.cache, prompts, lambda request: request.budget)
        groups: dict[Drafter, list[Request]] = {}
        for request in requests:
            text, _, hidden = results[request]
            request.begin(list(text))
            self._choose(request, hidden[0])
            groups.setdefault(request.drafter, []).append(request)
        for drafter, group in groups.items():  # the others do not even read the prompt
            drafter.start(group)
        for request in requests:
            p = TokenDistribution.from_logits(request.sampling, results[request][1])
            try:
                request.append_first(request.verify(p, NO_DRAFT, request.rng).token)
            except InputError as error:
                request.error = error
        seconds = time.perf_counter() - started
        for request in requests:
            request.output.stats.prefill_seconds = seconds

    def _choose(self, request: Request, hidden: torch.Tensor) -> None:
        arm = 0
        if self.router is not None:
            request.embedding = self.target.embed(self.cache, request, hidden)
            weights = self.router.weigh(request.embedding)
            best = weights.index(max(weights))
            arm = request.output.arm = best if weights[best] == 1.0 else request.rng.pick(weights)
        request.choose(arm)

    @torch.inference_mode()
    def release(self, request: Request) -> None:
        """A request leaves; a router learns how fast its arm was."""
        self.cache.remove(request)
        request.drafter.release(request)
        stats, arm = request.output.stats, request.output.arm
        learns = request.error is None and not request.cancelled and stats.seconds > 0
        if self.router is not None and request.embedding is not None and arm is not None and learns:
            self.router.learn(request.embedding, arm, (stats.n_generated - 1) / stats.seconds)

    def clear(self) -> None:
        """Forget all requests, in whatever state an interrupted round has left them."""
        self.cache.clear()
