"""Hooks of the engine: the choice of an arm by a router, and the measurement of rounds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..controllers.router import Router
from ..models import LanguageModel, TextCache
from .core import Draft, Request, RoundHook


class RouterHook(RoundHook):
    """Lets a router choose each request's arm by its prompt's embedding.

    Args:
        router: the router.
        target, cache: the engine's target and cache.
    """

    def __init__(self, router: Router, target: LanguageModel, cache: TextCache) -> None:
        self.router, self.target, self.cache = router, target, cache

    def prompt_read(self, request: Request, state: Tensor) -> None:
        embedding = self.target.embed(self.cache, request, state[: self.target.hidden_size])
        weights = self.router.weigh(embedding)
        best = weights.index(max(weights))
        request.output.arm = best if weights[best] == 1.0 else request.rng.pick(weights)
        request.choose(request.output.arm)


class RoundTimer:
    """Measures the seconds of rounds, and reports them as soon as they are known.

    On CUDA the seconds are measured between events in the stream. The events have passed by the end of a later round,
    so that the host does not wait for them. On other devices the host has waited for the results of the round, and the
    seconds are known at once.

    Args:
        device: the target's device.

    Attributes:
        pending: first mark, last mark and report function of rounds whose seconds are not known yet.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pending: deque[tuple[Any, Any, Callable[[float], None]]] = deque()

    def mark(self) -> Any:
        """Return a mark of the current time: a recorded event on CUDA, ``time.perf_counter()`` on other devices."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between(self, first: Any, last: Any) -> float | None:
        """Return the seconds between two marks; None if they are not known yet."""
        if self.device.type != "cuda":
            return float(last - first)
        return float(first.elapsed_time(last)) / 1e3 if last.query() else None

    def stop(self, started: Any, report: Callable[[float], None]) -> None:
        """Note the end of a round; ``report`` is called with its seconds, in the order of rounds.

        Args:
            started: the mark of the round's start.
            report: receives the seconds.
        """
        self.pending.append((started, self.mark(), report))
        while self.pending and (seconds := self.between(*self.pending[0][:2])) is not None:
            self.pending.popleft()[-1](seconds)


class RoundClock(RoundHook):
    """Adds the time of rounds to the requests' counters, and reports it to drafters and length controllers.

    Args:
        device: the target's device.
    """

    def __init__(self, device: torch.device) -> None:
        self.timer = RoundTimer(device)
        self.rows = 0  # requests of the latest round

    def round_started(self) -> None:
        self.started, self.mark = time.perf_counter(), self.timer.mark()

    def round_ended(self, drafts: Mapping[Request, Draft], joining: Sequence[Request]) -> None:
        """Add the round's time to every request, since all of them waited for its forwards."""
        seconds = time.perf_counter() - self.started
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
        prompts = bool(joining) or first_drafts  # no cost model covers reading prompts; first drafts also read them
        tokens = max((len(draft.tokens) for draft in drafts.values()), default=0)
        forwards = max((draft.n_forwards for draft in drafts.values()), default=0)
        timed = [] if prompts else [drafter.timed for drafter in {request.drafter for request in drafts}]
        # The controllers' cost models do not cover copied tokens, nor several steps of the target.
        covered = not prompts and not any(draft.copied or draft.sequential for draft in drafts.values())
        for request in controllers.values():  # one request of each controller, whose copies share the measured costs
            if covered:
                timed.append(request.length.timed)
            else:
                request.length.untimed()
        self.rows = rows = len(drafts)

        def report(measured: float) -> None:
            """Report the round's seconds, unless a later round had another number of requests."""
            if self.rows == rows:  # costs depend on the number of requests
                for add_time in timed:
                    add_time(tokens, forwards, measured)

        self.timer.stop(self.mark, report)
