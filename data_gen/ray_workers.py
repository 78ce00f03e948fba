"""Workers on a Ray cluster: an actor on each device has target and draft, and this process distributes the shards.

A worker that dies (killed, out of memory, lost with its node) is replaced as soon as the cluster has a free device. Its
shard goes to the next free worker at once. Plain actors are used instead of Ray Data, which keeps the shard of a dead
actor waiting until that actor is restarted, and cannot name the shard that killed a worker.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Self

import torch
import transformers
from rich.console import Console

from ..common.console import quiet
from ..common.errors import InputError, optional_import
from ..common.machine import limit_memory
from ..common.record import to_json
from .dataset import differences
from .options import WorkerOptions
from .workers import Description, OnDone, S, ShardMaker, T, ThisProcess, U, Workers, ignore

MAX_DEATHS = 5  # number of dead workers of a unit after which the run fails
PATIENCE = 30.0  # seconds without a loaded worker after which a message is printed

Job = Callable[[Any], Any]  # sends work to an actor and returns the reference of the result


class Actor(Generic[U, S]):
    """A worker. It loads the models at the first call, so that errors are reported."""

    def __init__(self, new_maker: Callable[[], ShardMaker[U, S]], threads: int) -> None:
        torch.set_num_threads(threads)
        quiet()
        limit_memory()
        self._new_maker = new_maker

    def describe(self) -> Description:
        """Load the models, and return the facts about them and the worker's machine."""
        self._maker = self._new_maker()
        description = self._maker.describe()
        on_gpu = torch.cuda.is_available()
        hardware = torch.cuda.get_device_name() if on_gpu else torch.backends.cpu.get_cpu_capability()
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        return replace(description, hardware=hardware, versions=versions)

    def ask(self, question: Callable[[Any], T]) -> T:
        """Return the result of ``question`` for the shard maker."""
        return question(self._maker)

    def make(self, unit: U) -> tuple[S, list[int]]:
        """Return the shard of ``unit``, and the numbers of tokens of its texts."""
        tokens: list[int] = []
        return self._maker.make(unit, tokens.append), tokens


class RayWorkers(Workers[U, S]):
    """Up to ``options.workers`` actors, which are started when there is work; see :func:`open_workers`."""

    def __init__(
        self, new_maker: Callable[[], ShardMaker[U, S]], options: WorkerOptions, device: str, console: Console
    ) -> None:
        assert options.workers is not None
        if ":" in device:
            raise InputError(f"device={device!r}: Ray gives each worker a device; use 'auto', 'cuda' or 'cpu'")
        with optional_import("ray"):
            import ray
        self.count, self.console = options.workers, console
        # As many threads as a process here would have, because sums depend on their division among threads.
        self._threads = torch.get_num_threads()
        self._new_maker = new_maker
        connect(options.ray, self.count * self._threads)
        on_gpu = device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        cpus, gpus = (1, options.gpus_per_worker) if on_gpu else (self._threads, 0)
        self._actor: Any = ray.remote(Actor).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD")
        self._busy: dict[
            Any, tuple[Any, int | None]
        ] = {}  # result → actor and key of its job; the key is None while models are loaded
        self._idle: list[Any] = []
        self._is_described = False

    def __enter__(self) -> Self:
        try:
            self.ask(lambda maker: None)  # starts one worker, which sets `description`
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()

    def ask(self, question: Callable[[Any], T]) -> T:
        ((_, value),) = self._run({0: lambda actor: actor.ask.remote(question)}, 1)
        return value  # type: ignore[no-any-return]

    def make_all(self, units: Mapping[int, Callable[[], U]], on_done: OnDone = ignore) -> Iterator[tuple[int, S]]:
        if 0 < len(units) < self.count:
            self.console.print(
                f"{len(units)} shards for {self.count} workers; pass a smaller --shard-size to give every worker a "
                "shard"
            )
        jobs = {index: partial(send, new_unit) for index, new_unit in units.items()}
        for index, (shard, tokens) in self._run(jobs, min(self.count, len(units))):
            for length in tokens:
                on_done(length)
            yield index, shard

    def _run(self, jobs: Mapping[int, Job], count: int) -> Iterator[tuple[int, Any]]:
        """Yield the keys and results of ``jobs`` as they finish, from up to ``count`` workers."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        pending, deaths = deque(jobs), Counter[int | None]()
        remaining = len(jobs)
        while remaining:
            while len(self._idle) + len(self._busy) < count:
                actor = self._actor.remote(self._new_maker, self._threads)
                self._busy[actor.describe.remote()] = actor, None
            self._hand_out(jobs, pending)
            result = self._next_result()
            actor, key = self._busy.pop(result)
            try:
                value = ray.get(result)
            except RayError as error:
                if isinstance(error, RayTaskError) and not out_of_memory(error.cause):
                    raise error.cause from None
                ray.kill(actor)
                deaths[key] += 1
                self._report(key, deaths[key], error)
                if key is not None:
                    pending.appendleft(key)
                continue
            self._idle.append(actor)
            deaths[None] = 0  # the cluster as a whole works
            if key is None:
                self._check(value)
                continue
            remaining -= 1
            self._hand_out(jobs, pending)  # before the caller processes the result
            yield key, value

    def _hand_out(self, jobs: Mapping[int, Job], pending: deque[int]) -> None:
        """Send jobs to idle workers."""
        while pending and self._idle:
            actor, key = self._idle.pop(), pending.popleft()
            self._busy[jobs[key](actor)] = actor, key

    def _next_result(self) -> Any:
        """Return a finished result. Prints a message if no worker has loaded its models after ``PATIENCE`` seconds."""
        import ray

        waiting = [*self._busy]
        finished, _ = ray.wait(waiting, timeout=PATIENCE)
        if not finished:
            if all(key is None for _, key in self._busy.values()):
                self.console.print("waiting for a worker to load its models; it needs a free device in the cluster")
            finished, _ = ray.wait(waiting)
        return finished[0]

    def _report(self, key: int | None, deaths: int, error: Exception) -> None:
        """Print that a worker died.

        Raises:
            InputError: ``MAX_DEATHS`` workers of the same unit died.
        """
        activity = "loading the models" if key is None else f"shard {key}"
        reason = " ".join(str(error).split())[:300]
        if deaths >= MAX_DEATHS:
            raise InputError(
                f"workers={self.count}: {deaths} workers died one after the other at {activity}; if the memory does "
                f"not suffice, use fewer workers per machine; the last error: {reason}"
            )
        self.console.print(f"a worker died at {activity}, and another worker continues: {reason}", soft_wrap=True)

    def _check(self, description: Description) -> None:
        """Raise InputError if a worker would make other shards than the first worker."""
        if not self._is_described:
            self.description, self._is_described = description, True
        for name, (first, other) in differences(to_json(self.description), to_json(description)).items():
            raise InputError(
                f"{name}: differs between the workers, {first!r} and {other!r}, so that their shards would differ; use "
                "the same models, versions and kind of device everywhere"
            )


def out_of_memory(error: BaseException) -> bool:
    """Return true if a worker ran out of memory. PyTorch has no error class for this on a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def send(new_unit: Callable[[], U], actor: Any) -> Any:
    """Request the shard of a unit from ``actor``, and return the reference of the result."""
    return actor.make.remote(new_unit())


def connect(address: str | None, cpus: int) -> None:
    """Join the cluster at ``address``, or start one on this machine with ``cpus`` CPUs.

    Raises:
        InputError: there is no cluster at ``address``, or it has another version.
    """
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports usage statistics otherwise
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init("local", num_cpus=cpus, include_dashboard=False, **options)
        return
    try:
        ray.init(address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"ray={address!r}: no cluster can be joined there; start one with 'ray start' ({reason})"
        ) from error


def open_workers(
    new_maker: Callable[[], ShardMaker[U, S]], options: WorkerOptions, device: str, console: Console
) -> AbstractContextManager[Workers[U, S]]:
    """Return a context manager of the workers that ``options`` request.

    Args:
        new_maker: loads the models; called in the worker's process.
        options: the options of workers.
        device: device of the models. With ``auto`` and ``cuda`` each worker gets a GPU if the cluster has GPUs.
        console: shows messages.

    Raises:
        InputError: Ray is not installed, there is no cluster at the address, or ``device`` names one of several.
    """
    if options.workers is None:
        return nullcontext(ThisProcess(new_maker()))
    return RayWorkers(new_maker, options, device, console)
