"""The thread that decodes: it does round after round for all requests, and reports each one's new rounds.

Everything else of the server runs in the event loop. Requests enter by :meth:`Worker.submit`; after every round the
event loop is called once, with the news of all requests.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ..infer.core import Request, Round
from ..infer.scheduler import Scheduler
from .errors import ApiError

T = TypeVar("T")
RETRY_AFTER = 1  # seconds, for clients that find the queue full


@dataclass(frozen=True)
class News:
    """What became of a job in a round.

    Attributes:
        rounds: those done since the last news.
        first: the index of the first of them.
        finished: there will be no more.
    """

    rounds: list[Round]
    first: int
    finished: bool


@dataclass(eq=False)
class Job:
    """A request in the worker's hands.

    Attributes:
        report: called in the event loop with every news.
        deadline: ``time.monotonic()`` at which it is cancelled.
        reported: rounds that have been reported.
        late: it was cancelled by its deadline.
    """

    request: Request
    report: Callable[[Job, News], None]
    deadline: float
    reported: int = 0
    late: bool = False

    def cancel(self) -> None:
        """Leave before the next round; no more news come."""
        self.request.cancelled = True


class Worker:
    """Decodes for a server.

    Args:
        scheduler: used by this worker alone.
        max_queue: requests that may wait for a place among the running ones.
    """

    def __init__(self, scheduler: Scheduler, max_queue: int) -> None:
        self.scheduler, self.max_queue = scheduler, max_queue
        self.jobs: list[Job] = []
        self._news = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="specpilot-decoder", daemon=True)

    def start(self) -> None:
        """Begin to decode; to be called in the event loop that reports go to."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Requests that are not yet decoded, and still wanted."""
        return sum(not request.cancelled for request in self.scheduler.waiting.copy())

    @property
    def running(self) -> int:
        """Requests that are being decoded."""
        return len(self.scheduler.running)

    @property
    def places(self) -> int:
        """Requests that an idle server takes: some are decoded, the others wait."""
        return self.scheduler.max_running + self.max_queue

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue ``jobs``, all or none.

        Raises:
            ApiError: 429: the queue is full; 503: the worker has stopped.
        """
        with self._news:
            if self._stopping or not self.alive:
                raise ApiError(503, "the server is shutting down", retry_after=RETRY_AFTER)
            room = self.places - self.running - self.waiting
            if len(jobs) > room:
                raise ApiError(
                    429,
                    f"the queue is full ({self.running} requests run, {self.waiting} wait); try again later",
                    code="queue_full",
                    retry_after=RETRY_AFTER,
                )
            self.scheduler.submit([job.request for job in jobs])
            self.jobs += jobs
            self._news.notify()

    def stop(self) -> None:
        """Finish the jobs there are, then end the thread."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._news:
                while not self.jobs and not self._stopping:
                    self._news.wait()
                if not self.jobs:
                    return
                jobs = list(self.jobs)
            now = time.monotonic()
            for job in jobs:
                if now > job.deadline:
                    job.late = True
                    job.cancel()
            with suppress(Exception):  # every running request has it as its error, and is reported so
                self.scheduler.step()
            self._report(jobs)

    def _report(self, jobs: list[Job]) -> None:
        """Tell the event loop, once for all."""
        news: list[tuple[Job, News]] = []
        for job in jobs:
            rounds, first = job.request.output.rounds, job.reported
            finished = job.request.finished
            if finished or len(rounds) > first:
                news.append((job, News(rounds[first:], first, finished)))
                job.reported = len(rounds)
        gone = {job for job, one in news if one.finished}
        if gone:
            with self._news:
                self.jobs = [job for job in self.jobs if job not in gone]
        if news:
            self._loop.call_soon_threadsafe(_deliver, news)


def _deliver(news: list[tuple[Job, News]]) -> None:
    for job, one in news:
        job.report(job, one)


def in_own_thread(function: Callable[[], T]) -> T:
    """The result of ``function``, or its exception, in a thread that ends with it. SIGINT interrupts the waiting.

    Every thread that computes with PyTorch on a CPU has OpenMP threads of its own, which end with it. Where they are
    more than the cores, all of them sleep between operations instead of spinning, and small operations take twice as
    long. A server therefore loads its models in a thread that ends before the decoder's begins.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    result = future.result()
    thread.join()
    return result
