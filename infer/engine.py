"""The decoding loop: one round at a time for any number of requests.

The loop of Leviathan et al. 2023 for any drafter and verifier. ``p`` is the target, ``q`` the draft, both under the
same sampling parameters. Under a lossless rule every request's output has the target's distribution.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..common.errors import InputError
from ..controllers.router import Router
from ..models import LanguageModel, Read, TreeMask
from .distribution import RowwiseDistribution, TokenDistribution, distributions
from .draft import NO_DRAFT, Draft
from .request import Drafter, Request
from .verify import Verdict
from .verify.on_device import RULES, Drafted, verify_drawn

NOTHING_READ = TokenDistribution(torch.empty(0, 0), None, 0)


class RoundTimer:
    """Times rounds, and tells their seconds when they are known.

    On CUDA these are between events in the stream, which have passed by the end of a later round, so that nothing waits
    for them. Elsewhere the host has waited for what it times, and they are known at once.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.untold: deque[tuple[Any, Any, Callable[[float], None]]] = deque()

    def mark(self) -> Any:
        """This moment."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between(self, first: Any, last: Any) -> float | None:
        """Seconds between two marks; None while that is not known."""
        if self.device.type != "cuda":
            return float(last - first)
        return float(first.elapsed_time(last)) / 1e3 if last.query() else None

    def stop(self, started: Any, tell: Callable[[float], None]) -> None:
        """A round has ended that began at the mark ``started``; ``tell`` gets its seconds, in their order."""
        self.untold.append((started, self.mark(), tell))
        while self.untold and (seconds := self.between(*self.untold[0][:2])) is not None:
            self.untold.popleft()[-1](seconds)


class Engine:
    """A target, its cache and its requests. Not thread-safe: the scheduler calls it from one thread at a time.

    Args:
        target: the target model.
        router: chooses each request's arm by its prompt's embedding; None if there is one arm.
    """

    def __init__(self, target: LanguageModel, router: Router | None = None) -> None:
        self.target, self.router = target, router
        self.cache = target.new_cache()
        self.timer = RoundTimer(target.device)
        self.rows = 0  # requests of the current round
        self.stream: torch.cuda.Stream | None = None  # of the last round on CUDA

    def step(self, requests: Sequence[Request]) -> None:
        """One round: every request drafts, one target forward reads all drafts, each request verifies its draft.

        Must be called in inference mode.

        A joining request drafts nothing; the same forward reads its prompt. Between rounds the caches hold a prefix of
        each request's text; the target's lacks only the last token.
        """
        self._follow_stream()
        started, mark = time.perf_counter(), self.timer.mark()
        joining = self._begin(requests)
        drafts = self._propose(requests, joining)  # y_1 … y_K, or a tree of them, for each request
        p, hidden, logits = self._read(drafts, joining)  # p_1 … p_{K+1}, after the text and after each drafted token
        for request in joining:
            self._choose_arm(request, hidden[request][-1])
        for request, (draft, verdict) in self._verify(drafts, p).items():
            start = len(request.text)
            if not draft.from_target:
                self.cache.keep(request, start, [start + node for node in verdict.path])
            if request in hidden:  # without those of what is left out of a draft after a stop token
                states = hidden[request][: len(hidden[request]) - len(drafts[request].tokens) + len(draft.tokens)]
                if request.drafter.reads_states:
                    request.add_states(states, draft, verdict.path)
                if request.length.reads_target:
                    last = 1 + verdict.path[-1] if verdict.path else 0  # the row, after the text's, that gave the token
                    request.length.see(states[-1 - len(draft.tokens) :, : self.target.hidden_size][last])
            request.drafter.commit(request, draft, verdict.path)
            request.append(draft, verdict)
            if request in logits and request.recorder is not None:
                request.recorder.record(request, draft, verdict, p[request], logits[request])
        self._start_drafting(joining)
        self._clock(drafts, joining, time.perf_counter() - started, mark)

    def _follow_stream(self) -> None:
        """Order this round after the last one, which another thread may have run on another CUDA stream."""
        if self.target.device.type == "cuda":
            stream = torch.cuda.current_stream(self.target.device)
            if self.stream is not None and self.stream != stream:
                stream.wait_stream(self.stream)
            self.stream = stream

    def _begin(self, requests: Sequence[Request]) -> list[Request]:
        """Give each joining request a row of the cache, and return these requests."""
        joining = [request for request in requests if not request.text]
        for request in joining:
            room = max(arm.drafter.room(request) for arm in request.arms)
            request.begin(self.target.begin(self.cache, request, request.prompt, room))
        return joining

    def _propose(self, requests: Sequence[Request], joining: Sequence[Request]) -> dict[Request, Draft]:
        """Every request's draft; requests with the same drafter are drafted together."""
        found: dict[Request, Draft] = dict.fromkeys(joining, NO_DRAFT)
        groups: dict[Drafter, list[Request]] = {}
        for request in requests:
            if request in found:
                continue
            request.length.shared_by(len(requests))
            groups.setdefault(request.drafter, []).append(request)
        for drafter, group in groups.items():
            found |= zip(group, drafter.propose(group), strict=True)
        if not self.target.reads_drawn:
            found = {request: draft.known(request.rng, request.stop_tokens) for request, draft in found.items()}
        return {request: found[request] for request in requests if request.error is None}

    def _read(
        self, drafts: dict[Request, Draft], joining: Sequence[Request]
    ) -> tuple[dict[Request, TokenDistribution], dict[Request, torch.Tensor], dict[Request, torch.Tensor]]:
        """One target forward.

        Returns:
            Distributions after each text and drafted token; the last states (n, d) of prompts, where something reads
            states those of drafts as well, and of all tokens read if a drafter of the request reads states; the logits
            (N + 1, V) of requests that record them.
        """
        reading = [request for request, draft in drafts.items() if not draft.from_target]
        if not reading:
            return {}, {}, {}
        reads = []
        for request in reading:
            draft, unread = drafts[request], request.text[self.cache.length(request) :]
            tree = None if draft.is_chain else TreeMask.of_parents(len(request.text), draft.parents)
            tokens, states = [*unread, *draft.tokens], None
            drawn = draft.drawn.tokens if draft.drawn is not None and draft.drawn.uniforms else None
            if request.reads_states:
                states = len(tokens)
            reads.append(Read(request, tokens, len(draft.tokens) + 1, tree, states, drawn=drawn))
        logits, hidden = self.target.forward(self.cache, reads)
        counts = [read.keep for read in reads]
        p: Sequence[TokenDistribution]
        if len(reading) == 1 and logits.device.type == "cpu" and not drafts[reading[0]].is_chain:
            p = [RowwiseDistribution(reading[0].sampling, logits)]
        else:
            p = distributions([request.sampling for request in reading], logits, counts)
        found: dict[Request, torch.Tensor] = {}
        if joining or any(request.reads_states or request.length.reads_target for request in reading):
            found = dict(zip(reading, torch.split(hidden, [read.kept_states for read in reads]), strict=True))
        recorded: dict[Request, torch.Tensor] = {}
        if any(request.recorder is not None for request in reading):
            recorded = {
                request: rows
                for request, rows in zip(reading, torch.split(logits, counts), strict=True)
                if request.recorder is not None
            }
        return dict(zip(reading, p, strict=True)), found, recorded

    def _verify(
        self, drafts: dict[Request, Draft], p: dict[Request, TokenDistribution]
    ) -> dict[Request, tuple[Draft, Verdict]]:
        """What is kept of the drafts, whose tokens the host has read now; a failing request gets its error alone."""
        chains = {
            request: Drafted(p[request], draft, draft.drawn, request.verify, request.rng, request.stop_tokens)
            for request, draft in drafts.items()
            if draft.drawn is not None and request.verify in RULES
        }
        judged = dict(zip(chains, verify_drawn([*chains.values()]) if chains else [], strict=True))
        found: dict[Request, tuple[Draft, Verdict]] = {}
        for request, draft in drafts.items():
            try:
                if request not in judged:
                    known = draft.known(request.rng, request.stop_tokens)
                    found[request] = known, request.verify(p.get(request, NOTHING_READ), known, request.rng)
                    continue
                verdict = judged[request]
                if isinstance(verdict, InputError):
                    raise verdict
                found[request] = verdict
            except InputError as error:
                request.error = error
        return found

    def _choose_arm(self, request: Request, hidden: torch.Tensor) -> None:
        """Choose the request's arm, by a router if there is one; ``hidden`` (d,) is the prompt's last state."""
        arm = 0
        if self.router is not None:
            request.embedding = self.target.embed(self.cache, request, hidden[: self.target.hidden_size])
            weights = self.router.weigh(request.embedding)
            best = weights.index(max(weights))
            arm = request.output.arm = best if weights[best] == 1.0 else request.rng.pick(weights)
        request.choose(arm)

    def _start_drafting(self, joining: Sequence[Request]) -> None:
        """Start the chosen arms' drafters for joining requests that have not ended."""
        groups: dict[Drafter, list[Request]] = {}
        for request in joining:
            if not request.finished:
                request.drafting = True
                groups.setdefault(request.drafter, []).append(request)
        for drafter, group in groups.items():
            drafter.start(group)

    def _clock(self, drafts: dict[Request, Draft], joining: Sequence[Request], seconds: float, mark: Any) -> None:
        """Add the round's time to every request, since all of them waited for its forwards; it began at ``mark``."""
        for request in joining:
            request.output.stats.prefill_seconds = seconds
        controllers: dict[int, Request] = {}
        for request in drafts:
            if request not in joining:
                request.output.stats.seconds += seconds
                controllers.setdefault(id(request.shared_length), request)
        first_drafts = any(
            0 < draft.n_forwards == request.output.stats.n_draft_forwards for request, draft in drafts.items()
        )
        prompts = bool(joining) or first_drafts  # no cost model covers them; first drafts read them as well
        tokens = max((len(draft.tokens) for draft in drafts.values()), default=0)
        forwards = max((draft.n_forwards for draft in drafts.values()), default=0)
        timed = [] if prompts else [drafter.timed for drafter in {request.drafter for request in drafts}]
        # The controllers' cost models do not cover copied tokens.
        covered = not prompts and not any(draft.copied for draft in drafts.values())
        for request in controllers.values():  # one request of each, since they share what they learn of the machine
            if covered:
                timed.append(request.length.timed)
            else:
                request.length.untimed()
        self.rows = rows = len(drafts)

        def tell(measured: float) -> None:
            if self.rows == rows:  # otherwise what is told would count for rounds of other numbers of requests
                for of_round in timed:
                    of_round(tokens, forwards, measured)

        self.timer.stop(mark, tell)

    @torch.inference_mode()
    def release(self, request: Request) -> None:
        """Remove a request, and report the speed of its arm to the router."""
        self.cache.remove(request)
        if request.drafting:
            request.drafter.release(request)
        stats, arm = request.output.stats, request.output.arm
        learns = request.error is None and not request.cancelled and stats.seconds > 0
        if self.router is not None and request.embedding is not None and arm is not None and learns:
            self.router.learn(request.embedding, arm, (stats.n_generated - 1) / stats.seconds)

    def clear(self) -> None:
        """Remove all requests, also after an interrupted round."""
        self.cache.clear()
