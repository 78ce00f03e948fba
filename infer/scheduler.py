"""Continuous batching: requests join and leave between rounds, and any number of threads may wait for theirs.

There is no background thread. One of the waiting threads at a time runs rounds for all requests; when its own request
has new tokens it returns, and another thread continues.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from ..common.errors import InputError
from .core import Request
from .engine import Engine


class Scheduler:
    """The requests of one engine, waiting and running.

    Args:
        max_running: maximum number of requests in a round; others wait in order of arrival.
    """

    def __init__(self, engine: Engine, max_running: int) -> None:
        self.engine, self.max_running = engine, max_running
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._turn = threading.Condition()
        self._busy = False  # a thread is doing a round

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue ``requests``; rounds are run by the threads that wait for them."""
        self.waiting.extend(requests)

    def cancel(self, requests: Sequence[Request]) -> None:
        """Cancel ``requests``: they are removed before the next round, and no longer wait."""
        for request in requests:
            request.cancelled = True
        with self._turn:
            if not self._busy:  # otherwise the thread that runs the round removes them
                self._retire()

    def run(self, requests: Sequence[Request]) -> None:
        """Run rounds until ``requests`` have finished.

        Requests with larger budgets start first, so that long ones do not run alone at the end.

        Raises:
            BaseException: the error of a failed request; the others are cancelled.
        """
        self.submit(sorted(requests, key=lambda request: -request.budget))
        try:
            for request in requests:
                self._wait(_finished(request))
                _checked(request)
        finally:
            unfinished = [request for request in requests if not request.finished]
            if unfinished:
                self.cancel(unfinished)

    def as_finished(self, requests: Sequence[Request]) -> Iterator[Request]:
        """Run rounds until ``requests`` have finished, and yield each when it has; they begin in their order.

        Closing the iterator cancels the rest.

        Raises:
            BaseException: the error of a failed request.
        """
        waiting, begun = deque(requests), list[Request]()
        del requests  # what has finished may be forgotten
        try:
            while waiting or begun:
                joining = [waiting.popleft() for _ in range(min(len(waiting), 2 * self.max_running - len(begun)))]
                self.submit(joining)
                begun += joining
                self._wait(_one_finished(begun))
                for request in [request for request in begun if request.finished]:
                    begun.remove(request)
                    yield _checked(request)
        finally:
            self.cancel(begun)

    def tokens(self, request: Request) -> Iterator[list[int]]:
        """Yield the new tokens of ``request`` after each round; closing the iterator cancels the request."""
        request.streamed = True
        self.submit([request])
        rounds = 0
        try:
            while True:
                self._wait(_has_more(request, rounds))
                _checked(request)
                for round in request.output.rounds[rounds:]:
                    rounds += 1
                    yield round.emitted
                if request.finished and len(request.output.rounds) == rounds:
                    return
        finally:
            if not request.finished:
                self.cancel([request])

    @torch.inference_mode()
    def step(self) -> None:
        """Admit requests and run one round for all running requests."""
        self._round()

    def _round(self) -> None:
        """:meth:`step`, called in inference mode."""
        self._retire()
        try:
            self._admit()
            if self.running:
                self.engine.step(self.running)
                self._retire()
        except torch.OutOfMemoryError as error:
            failure = InputError(
                f"max_running={self.max_running}: {len(self.running)} texts together do not fit the memory of "
                f"{self.engine.target.device}; take fewer at once, or shorter ones"
            )
            self._fail_all(failure)
            raise failure from error
        except BaseException as error:
            self._fail_all(error)
            raise

    def _admit(self) -> None:
        """Let waiting requests run, as many as ``max_running`` and the free memory allow.

        A request that has too little memory waits for others to finish; it fails if it has too little alone.
        """
        joining: list[Request] = []
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            if not request.cancelled and not self.engine.has_room([*joining, request]):
                if self.running:
                    break
                self._clear(request)
                if not self.engine.has_room([request]):
                    request.error = self._too_long(request)
            self.waiting.popleft()
            if not request.finished:
                joining.append(request)
                self.running.append(request)

    def _clear(self, request: Request) -> None:
        """Free the buffers that were made for earlier requests, while none runs."""
        self.engine.clear()
        for drafter in {arm.drafter for arm in request.arms}:
            drafter.clear()

    def _too_long(self, request: Request) -> InputError:
        needed, free = self.engine.growth([request]) / 2**30, (self.engine.free_bytes() or 0) / 2**30
        return InputError(
            f"prompt: keys and values of {len(request.prompt):,} tokens and max_new_tokens={request.budget:,} take "
            f"{needed:,.2f} GiB, and {free:,.2f} GiB of {self.engine.target.device} are free; take fewer new tokens or "
            "a shorter prompt"
        )

    @torch.inference_mode()  # once instead of in every round
    def _wait(self, done: Callable[[], bool]) -> None:
        while True:
            with self._turn:
                while self._busy and not done():
                    self._turn.wait()
                if done():
                    break
                self._busy = True
            try:
                self._round()
            finally:
                with self._turn:
                    self._busy = False
                    self._turn.notify_all()

    def _retire(self) -> None:
        """Remove finished requests, and cancelled ones that wait."""
        for request in [request for request in self.waiting.copy() if request.cancelled]:
            self.waiting.remove(request)
        for request in [request for request in self.running if request.finished]:
            # As in the cache, the last one moves to the free place, so that requests stay in the order of their rows.
            place, last = self.running.index(request), self.running.pop()
            if last is not request:
                self.running[place] = last
            self.engine.release(request)

    def _fail_all(self, error: BaseException) -> None:
        """Fail all running requests after an interrupted round, since none of them can continue."""
        drafters = {arm.drafter for request in self.running for arm in request.arms}
        for request in self.running:
            if not request.finished:
                request.error = error if isinstance(error, Exception) else RuntimeError("decoding was interrupted")
        self.running.clear()
        self.engine.clear()
        for drafter in drafters:
            drafter.clear()


def _checked(request: Request) -> Request:
    """``request``, unless it has failed: then its error is raised."""
    if request.error is not None:
        raise request.error
    return request


def _finished(request: Request) -> Callable[[], bool]:
    return lambda: request.finished


def _one_finished(requests: Sequence[Request]) -> Callable[[], bool]:
    return lambda: any(request.finished for request in requests)


def _has_more(request: Request, rounds: int) -> Callable[[], bool]:
    """A function that returns whether ``request`` has finished or has more than ``rounds`` rounds."""
    return lambda: request.finished or len(request.output.rounds) > rounds
