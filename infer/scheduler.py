"""Continuous batching: requests join and leave between rounds, and any number of threads may wait for theirs.

There is no background thread. One of the waiting threads at a time runs rounds for all requests; when its own request
has new tokens it returns, and another thread continues.

An exception may arrive between any two instructions of a thread: Ctrl-C, a notebook's stop button, a task's time limit.
Therefore a round is guarded by a lock of the interpreter alone, which ``with`` releases in any case; a waiting thread
looks again after a while if nobody told it of a round; and a round that did not come to its end is noticed by the next.
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

PATIENCE = 0.2  # seconds after which a waiting thread looks again


class Scheduler:
    """The requests of one engine, waiting and running.

    Args:
        max_running: maximum number of requests in a round; others wait in order of arrival.
    """

    def __init__(self, engine: Engine, max_running: int) -> None:
        self.engine, self.max_running = engine, max_running
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._in_order = True  # false while a round changes the requests, and after one that was interrupted
        self._begin_process()

    def _begin_process(self) -> None:
        """Set what is of one process: the threads that wait."""
        self._process = os.getpid()
        self._rounds = threading.Lock()  # held by the thread that runs a round
        self._listeners: list[weakref.ref[SimpleQueue[None]]] = []  # of the threads that wait for a round's end

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue ``requests``; rounds are run by the threads that wait for them."""
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

        Requests with larger budgets start first, so that long ones do not run alone at the end.

        Raises:
            BaseException: the error of a failed request; the others are cancelled.
        """
        try:
            self.submit(sorted(requests, key=lambda request: -request.budget))
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
                begun += joining
                self.submit(joining)
                self._wait(_one_finished(begun))
                for request in [request for request in begun if request.finished]:
                    begun.remove(request)
                    yield _checked(request)
        finally:
            self.cancel(begun)

    def tokens(self, request: Request) -> Iterator[list[int]]:
        """Yield the new tokens of ``request`` after each round; closing the iterator cancels the request."""
        request.streamed = True
        rounds = 0
        try:
            self.submit([request])
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

    def step(self) -> None:
        """Admit requests and run one round for all running requests."""
        self._exclusively(self._round)

    def _wait(self, done: Callable[[], bool]) -> None:
        """Run rounds, or wait for those of another thread, until ``done``."""
        news: SimpleQueue[None] = SimpleQueue()
        listener = weakref.ref(news)
        self._listeners.append(listener)
        try:
            while not done():
                if self._rounds.locked():
                    with suppress(Empty):
                        news.get(timeout=PATIENCE)
                    continue
                self._exclusively(lambda: None if done() else self._next_round())
                self._tell()
        finally:
            self._listeners.remove(listener)
            self._tell()

    def _tell(self) -> None:
        """Tell the threads that wait that a round has ended."""
        for listener in self._listeners.copy():
            news = listener()
            if news is None:  # its thread was interrupted
                with suppress(ValueError):
                    self._listeners.remove(listener)
            elif news.empty():  # otherwise the thread, which may run rounds itself, has not looked yet
                news.put(None)

    @torch.inference_mode()
    def _exclusively(self, work: Callable[[], object]) -> None:
        """Do what changes requests and caches, while no other thread does.

        What an interrupt left unfinished before is put in order first: its requests fail, and the caches are emptied.
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
        """In a forked process, forget the parent's threads: no thread is left that would end a round they are in.

        Raises:
            InputError: torch has several threads, which are not there either; its operations would wait for them.
        """
        if self._process == os.getpid():
            return
        if torch.get_num_threads() > 1:
            raise InputError(
                "decoder: it was made before this process was forked, and torch's threads do not survive that; call "
                "torch.set_num_threads(1) here, or start processes by 'spawn'"
            )
        if self._rounds.locked():
            self.waiting.clear()
            self._in_order = False
        self._begin_process()

    def _next_round(self) -> object:
        """A round that someone waits for.

        Raises:
            RuntimeError: an interrupt has taken the request out of the queue, so that no round will end it.
        """
        if not self.running and not self.waiting:
            raise RuntimeError("decoding was interrupted")
        self._round()
        return None

    def _round(self) -> None:
        """One round of all running requests."""
        self._retire()
        self._admit()
        if self.running:
            self.engine.step(self.running)
            self._retire()

    def _admit(self) -> None:
        """Let waiting requests run, as many as ``max_running`` and the free memory allow.

        A request that has too little memory waits for others to finish; it fails if it has too little alone.
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
                self.running.append(request)  # before it leaves the queue, so that an interrupt does not lose it
            self.waiting.popleft()

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

    def _retire(self) -> None:
        """Remove finished requests, and cancelled ones that wait."""
        for request in [request for request in self.waiting.copy() if request.cancelled]:
            self.waiting.remove(request)
        running = list(self.running)
        for request in [request for request in running if request.finished]:
            # As in the cache, the last one moves to the free place, so that requests stay in the order of their rows.
            place, last = running.index(request), running.pop()
            if last is not request:
                running[place] = last
            self.engine.release(request)
        self.running = running

    def _fail_all(self, error: Exception) -> None:
        """Fail all running requests after a round without an end, since none of them can continue.

        It may be interrupted as well, and is done again then.
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
