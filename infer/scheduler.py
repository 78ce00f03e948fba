"""Continuous batching: requests join and leave between rounds, and any number of threads may wait for their requests.

There is no background thread. One of the waiting threads at a time runs rounds for all requests. When its request has
new tokens, it returns, and another thread continues.

An exception may arrive between any two instructions of a thread: Ctrl-C, a notebook's stop button, a task's time limit.
Three rules handle this. The only lock is one of the interpreter, which ``with`` always releases. A waiting thread
checks again after a while, even without a notification. A round detects that an earlier round was interrupted.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import torch

from ..common.errors import InputError
from .core import Request
from .engine import Engine

PATIENCE = 0.2  # seconds after which a waiting thread checks again


class Scheduler:
    """The waiting and running requests of one engine.

    Args:
        engine: the engine.
        max_running: maximum number of requests in a round; others wait in order of arrival.
    """

    def __init__(self, engine: Engine, max_running: int) -> None:
        self.engine, self.max_running = engine, max_running
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._in_order = True  # false while a round changes the requests, and after one that was interrupted
        self._begin_process()

    def _begin_process(self) -> None:
        """Set the state that belongs to one process: the lock and the waiting threads."""
        self._process = os.getpid()
        self._rounds = threading.Lock()  # held by the thread that runs a round
        self._listeners: list[weakref.ref[SimpleQueue[None]]] = []  # queues of threads that wait for the end of a round

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue ``requests``; the threads that wait for them run the rounds."""
        self._follow_fork()
        self.waiting.extend(requests)

    def cancel(self, requests: Sequence[Request]) -> None:
        """Cancel ``requests``: they are removed before the next round, and no longer wait."""
        for request in requests:
            request.cancelled = True
        if not self._rounds.locked():  # otherwise the thread that runs a round removes them
            self._exclusively(self._retire)

    def run(self, requests: Sequence[Request]) -> None:
        """Run rounds until ``requests`` have finished.

        Requests with larger budgets start first, so that no long request runs alone at the end.

        Raises:
            BaseException: the error of a failed request; the others are cancelled.
        """
        try:
            self.submit(sorted(requests, key=lambda request: -request.budget))
            for request in requests:
                self._wait(_finished(request))
                _raise_error(request)
        finally:
            unfinished = [request for request in requests if not request.finished]
            if unfinished:
                self.cancel(unfinished)

    def as_finished(self, requests: Sequence[Request]) -> Iterator[Request]:
        """Run rounds, and yield each of ``requests`` when it has finished; requests begin in their order.

        Closing the iterator cancels the unfinished requests.

        Raises:
            BaseException: the error of a failed request.
        """
        waiting, started = deque(requests), list[Request]()
        del requests  # finished requests can be freed
        try:
            while waiting or started:
                joining = [waiting.popleft() for _ in range(min(len(waiting), 2 * self.max_running - len(started)))]
                started += joining
                self.submit(joining)
                self._wait(_any_finished(started))
                for request in [request for request in started if request.finished]:
                    started.remove(request)
                    yield _raise_error(request)
        finally:
            self.cancel(started)

    def tokens(self, request: Request) -> Iterator[list[int]]:
        """Yield the new tokens of ``request`` after each round; closing the iterator cancels the request.

        Raises:
            BaseException: the error of the request if it failed.
        """
        request.streamed = True
        rounds = 0
        try:
            self.submit([request])
            while True:
                self._wait(_has_more(request, rounds))
                _raise_error(request)
                for round in request.output.rounds[rounds:]:
                    rounds += 1
                    yield round.emitted
                if request.finished and len(request.output.rounds) == rounds:
                    return
        finally:
            if not request.finished:
                self.cancel([request])

    def step(self) -> None:
        """Admit requests and run one round for all running requests."""
        self._exclusively(self._round)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Run rounds, or wait for rounds of another thread, until ``is_done`` returns true."""
        notifications: SimpleQueue[None] = SimpleQueue()
        listener = weakref.ref(notifications)
        self._listeners.append(listener)
        try:
            while not is_done():
                if self._rounds.locked():
                    with suppress(Empty):
                        notifications.get(timeout=PATIENCE)
                    continue
                self._exclusively(lambda: None if is_done() else self._next_round())
                self._notify()
        finally:
            self._listeners.remove(listener)
            self._notify()

    def _notify(self) -> None:
        """Notify the waiting threads that a round has ended."""
        for listener in self._listeners.copy():
            notifications = listener()
            if notifications is None:  # its thread was interrupted
                with suppress(ValueError):
                    self._listeners.remove(listener)
            elif notifications.empty():  # otherwise the thread has not read the last notification yet
                notifications.put(None)

    @torch.inference_mode()
    def _exclusively(self, work: Callable[[], object]) -> None:
        """Call ``work``, which changes requests and caches, while no other thread does.

        If an earlier call was interrupted, the running requests fail first, and the caches are emptied.

        Raises:
            InputError: the texts do not fit the device's memory.
        """
        self._follow_fork()
        with self._rounds:
            if not self._in_order:
                self._fail_all(RuntimeError("decoding was interrupted"))
            self._in_order = False
            try:
                work()
            except torch.OutOfMemoryError as error:
                failure = InputError(
                    f"max_running={self.max_running}: {len(self.running)} texts together do not fit the memory of "
                    f"{self.engine.target.device}; take fewer at once, or shorter ones"
                )
                self._fail_all(failure)
                raise failure from error
            except BaseException as error:
                self._fail_all(error if isinstance(error, Exception) else RuntimeError("decoding was interrupted"))
                raise
            self._in_order = True

    def _follow_fork(self) -> None:
        """Reset the state of threads in a forked process, because the parent's threads do not exist there.

        Raises:
            InputError: torch has several threads, which do not exist in the forked process; operations would hang.
        """
        if self._process == os.getpid():
            return
        if torch.get_num_threads() > 1:
            raise InputError(
                "decoder: it was made before this process was forked, and a forked process lacks the threads of torch; "
                "call torch.set_num_threads(1) in the forked process, or start processes by 'spawn'"
            )
        if self._rounds.locked():
            self.waiting.clear()
            self._in_order = False
        self._begin_process()

    def _next_round(self) -> object:
        """Run a round for a waiting thread.

        Raises:
            RuntimeError: an interrupt has removed the request from the queue, so that no round will finish it.
        """
        if not self.running and not self.waiting:
            raise RuntimeError("decoding was interrupted")
        self._round()
        return None

    def _round(self) -> None:
        """Run one round of all running requests."""
        self._retire()
        self._admit()
        if self.running:
            self.engine.step(self.running)
            self._retire()

    def _admit(self) -> None:
        """Let waiting requests run, as many as ``max_running`` and the free memory allow.

        A request without enough memory waits for other requests to finish. It fails if the memory is too small for it
        alone.
        """
        joining: list[Request] = []
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            if not request.finished and not self.engine.has_room([*joining, request]):
                if self.running:
                    break
                self._clear(request)
                if not self.engine.has_room([request]):
                    request.error = self._too_long(request)
            if not request.finished:
                joining.append(request)
                self.running.append(request)  # before it is removed from the queue, in case of an interrupt
            self.waiting.popleft()

    def _clear(self, request: Request) -> None:
        """Free the buffers of earlier requests, while no request runs."""
        self.engine.clear()
        for drafter in {arm.drafter for arm in request.arms}:
            drafter.clear()

    def _too_long(self, request: Request) -> InputError:
        """Return the error for a request that needs more memory than is free."""
        required, free = self.engine.growth([request]) / 2**30, (self.engine.free_bytes() or 0) / 2**30
        return InputError(
            f"prompt: keys and values of {len(request.prompt):,} tokens and max_new_tokens={request.budget:,} take "
            f"{required:,.2f} GiB, and {free:,.2f} GiB of {self.engine.target.device} are free; take fewer new tokens "
            "or a shorter prompt"
        )

    def _retire(self) -> None:
        """Remove finished requests, and cancelled requests that wait."""
        for request in [request for request in self.waiting.copy() if request.cancelled]:
            self.waiting.remove(request)
        running = list(self.running)
        for request in [request for request in running if request.finished]:
            # As in the cache, the last one moves to the free place, so that requests stay in the order of their rows.
            index, last = running.index(request), running.pop()
            if last is not request:
                running[index] = last
            self.engine.release(request)
        self.running = running

    def _fail_all(self, error: Exception) -> None:
        """Fail all running requests after an interrupted round, because none of them can continue.

        If this method is interrupted, the next round calls it again.
        """
        self._in_order = False
        drafters = {arm.drafter for request in self.running for arm in request.arms}
        for request in self.running:
            if not request.finished:
                request.error = error
        self.engine.clear()
        for drafter in drafters:
            drafter.clear()
        self.running = []
        self._in_order = True


def _raise_error(request: Request) -> Request:
    """Return ``request``, or raise its error if it has failed."""
    if request.error is not None:
        raise request.error
    return request


def _finished(request: Request) -> Callable[[], bool]:
    """Return a function that returns whether ``request`` has finished."""
    return lambda: request.finished


def _any_finished(requests: Sequence[Request]) -> Callable[[], bool]:
    """Return a function that returns whether any of ``requests`` has finished."""
    return lambda: any(request.finished for request in requests)


def _has_more(request: Request, rounds: int) -> Callable[[], bool]:
    """Return a function that returns whether ``request`` has finished or has more than ``rounds`` rounds."""
    return lambda: request.finished or len(request.output.rounds) > rounds
