"""The thread that decodes: it runs round after round for all requests and reports the new rounds of each.

All other parts of the server run in the event loop. Requests enter by :meth:`Worker.submit`. After every round, the
event loop gets one call with the updates of all requests.
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
RETRY_AFTER = 1  # seconds until a client may try again if the queue is full


@dataclass(frozen=True)
class Update:
    """An update of a job.

    Attributes:
        rounds: the rounds since the last update.
        first: the index of the first of these rounds.
        finished: whether this is the last update.
    """

    rounds: list[Round]
    first: int
    finished: bool


@dataclass(eq=False)
class Job:
    """A request that the worker decodes.

    Attributes:
        request: the request.
        report: called in the event loop with every update.
        deadline: the value of ``time.monotonic()`` at which the job is cancelled.
        reported: number of rounds that were reported.
        timed_out: whether the job was cancelled at its deadline.
    """

    request: Request
    report: Callable[[Job, Update], None]
    deadline: float
    reported: int = 0
    timed_out: bool = False

    def cancel(self) -> None:
        """Cancel the job before the next round. No more updates are reported."""
        self.request.cancelled = True


class Worker:
    """Decodes the requests of a server in a thread.

    Args:
        scheduler: a scheduler that only this worker uses.
        max_queue: maximum number of requests that wait to run.
    """

    def __init__(self, scheduler: Scheduler, max_queue: int) -> None:
        self.scheduler, self.max_queue = scheduler, max_queue
        self.jobs: list[Job] = []
        self._jobs_changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="specpilot-decoder", daemon=True)

    def start(self) -> None:
        """Start the thread. To be called in the event loop that gets the updates."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return true while the thread runs."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """The number of requests that wait to run and are not cancelled."""
        return sum(not request.cancelled for request in self.scheduler.waiting.copy())

    @property
    def running(self) -> int:
        """The number of requests that are being decoded."""
        return len(self.scheduler.running)

    @property
    def places(self) -> int:
        """The number of requests that an idle server accepts, running and waiting."""
        return self.scheduler.max_running + self.max_queue

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of ``jobs``, or none.

        Raises:
            ApiError: 429 if the queue is full; 503 if the worker has stopped.
        """
        with self._jobs_changed:
            if self._stopping or not self.alive:
                raise ApiError(503, "the server is shutting down", retry_after=RETRY_AFTER)
            free_places = self.places - self.running - self.waiting
            if len(jobs) > free_places:
                raise ApiError(
                    429,
                    f"the queue is full ({self.running} requests run, {self.waiting} wait); try again later",
                    code="queue_full",
                    retry_after=RETRY_AFTER,
                )
            self.scheduler.submit([job.request for job in jobs])
            self.jobs += jobs
            self._jobs_changed.notify()

    def stop(self) -> None:
        """Finish all jobs, then end the thread."""
        with self._jobs_changed:
            self._stopping = True
            self._jobs_changed.notify()
        self._thread.join()

    def _work(self) -> None:
        """Run rounds while there are jobs; the body of the thread."""
        while True:
            with self._jobs_changed:
                while not self.jobs and not self._stopping:
                    self._jobs_changed.wait()
                if not self.jobs:
                    return
                jobs = list(self.jobs)
            now = time.monotonic()
            for job in jobs:
                if now > job.deadline:
                    job.timed_out = True
                    job.cancel()
            with suppress(Exception):  # every running request gets the error and is reported with it
                self.scheduler.step()
            self._report(jobs)

    def _report(self, jobs: list[Job]) -> None:
        """Report the updates of all jobs to the event loop, in a single call."""
        updates: list[tuple[Job, Update]] = []
        for job in jobs:
            rounds, first = job.request.output.rounds, job.reported
            finished = job.request.finished
            if finished or len(rounds) > first:
                updates.append((job, Update(rounds[first:], first, finished)))
                job.reported = len(rounds)
        finished_jobs = {job for job, update in updates if update.finished}
        if finished_jobs:
            with self._jobs_changed:
                self.jobs = [job for job in self.jobs if job not in finished_jobs]
        if updates:
            self._loop.call_soon_threadsafe(_deliver, updates)


def _deliver(updates: list[tuple[Job, Update]]) -> None:
    """Report each job's update; called in the event loop."""
    for job, update in updates:
        job.report(job, update)


def in_own_thread(function: Callable[[], T]) -> T:
    """Call ``function`` in a new thread that ends after the call, and return its result or raise its exception.

    SIGINT interrupts the waiting. Every thread that computes with PyTorch on a CPU has its own OpenMP threads, which
    end with it. If there are more OpenMP threads than cores, all of them sleep between operations instead of spinning,
    and small operations take twice as long. A server therefore loads its models in a thread that ends before the
    decoder's thread starts.
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
