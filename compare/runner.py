"""The timing loop of every benchmark: several configurations over the same items, in turn, in one process.

The speed of a machine varies over minutes, so configurations that are compared must alternate. After one warm-up run
each, all configurations run on an item before the next item begins; the order rotates from item to item. The items are
repeated ``repeats`` times.

The package zeus reads the energy, in joules, from hardware counters (Qin et al. 2025, §4 and Appendix D, poll the power
instead). The extra ``zeus`` installs the package. Without it, or without a counter that this process may read, the
energy is "not available". It is never estimated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from rich.console import Console

from ..common.console import progress_bar
from ..common.record import Identity
from ..infer.core import Generation, Stats
from ..infer.options import SamplingKeywords
from ..infer.prompting import Prompt
from .store import Store

NOT_AVAILABLE = "not available"
WINDOW = "specpilot"  # name of the interval in zeus


class Meter:
    """A meter of the energy that the processor and the GPUs use in an interval of time.

    Args:
        monitor: a ``zeus.monitor.ZeusMonitor``; None measures nothing.
    """

    def __init__(self, monitor: Any = None) -> None:
        self.monitor = monitor

    @classmethod
    def find(cls, device: str) -> Meter:
        """Return the meter for work on ``device``, ``cpu`` or ``cuda``.

        It measures the CPU packages, and for ``cuda`` also the GPUs. Without zeus, or without a counter that this
        process may read, it measures nothing.
        """
        try:
            from zeus.monitor import ZeusMonitor
        except ImportError:
            return cls()
        monitor = ZeusMonitor(gpu_indices=None if device == "cuda" else [])
        return cls(monitor if monitor.gpu_indices or monitor.cpu_indices else None)

    def begin(self) -> None:
        """Begin an interval; an interval that began earlier and did not end is discarded."""
        if self.monitor is not None:
            self.monitor.begin_window(WINDOW, restart=True)

    def end(self) -> float | None:
        """End the interval, and return the energy of all devices in joules; None without a counter."""
        if self.monitor is None:
            return None
        energy = self.monitor.end_window(WINDOW)
        return float(sum(energy.gpu_energy.values()) + sum((energy.cpu_energy or {}).values()))


T = TypeVar("T")
Run = Callable[[int, int], T]  # (item, repeat) → result


@dataclass(frozen=True)
class Timed(Generic[T]):
    """The result of a call.

    Attributes:
        seconds: wall time of the call.
        processor_seconds: processor time of the process; other work on the machine lengthens it less.
        joules: energy of all devices during the call; None without a counter.
    """

    value: T
    seconds: float
    processor_seconds: float
    joules: float | None = None


def clocked(call: Callable[[], T], meter: Meter | None = None) -> Timed[T]:
    """Return the result of ``call``, with its wall time, its processor time and, with a ``meter``, its energy."""
    meter = meter or Meter()
    meter.begin()
    started, processor = time.perf_counter(), time.process_time()
    value = call()
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    return Timed(value, seconds, processor, meter.end())


def interleave(
    runs: Mapping[str, Run[T]],
    items: int,
    console: Console,
    *,
    repeats: int | Mapping[str, int] = 1,
    pending: Mapping[str, Collection[int]] | None = None,
    meter: Meter | None = None,
    label: str = "generations",
) -> Iterator[tuple[str, int, Timed[T]]]:
    """Run every configuration on every item, and yield its name, the item and the result, outside the measured time.

    Args:
        runs: configurations by name, called with (item, repeat).
        items: number of items.
        console: shows the progress bar, labelled ``label``.
        repeats: passes over the items, for all configurations or by name.
        pending: items to run each configuration on. Default: all.
    """
    names = [name for name in runs if pending is None or pending[name]]
    passes = {name: repeats if isinstance(repeats, int) else repeats.get(name, 1) for name in names}
    for name in names:
        runs[name](0, 0)
    total = sum(passes[name] * (items if pending is None else len(pending[name])) for name in names)
    with progress_bar(console, label, total) as advance:
        for repeat in range(max(passes.values(), default=0)):
            for item in range(items):
                first = (item + repeat) % len(names)
                for name in names[first:] + names[:first]:
                    if repeat >= passes[name] or (pending is not None and item not in pending[name]):
                        continue
                    yield name, item, clocked(partial(runs[name], item, repeat), meter)
                    advance()


def interleave_stored(
    runs: Mapping[str, Run[T]],
    items: int,
    console: Console,
    *,
    store: Store,
    identity: Callable[[str, int], Identity],
    record: Callable[[str, int, Timed[T]], Any],
    meter: Meter | None = None,
) -> dict[str, list[Any]]:
    """Run every configuration on every item once, as :func:`interleave` does, and store each result.

    Results that are already in ``store`` are not computed again, so that an interrupted run continues.

    Args:
        runs: configurations by name.
        items: number of items.
        console: shows the progress bar.
        store: the stored results.
        identity: returns everything on which the result of a configuration, by name, and an item depends.
        record: returns the JSON value to store for a result; called outside the measured time.
        meter: measures the energy; None for no measurement.

    Returns:
        The records by name and item.
    """
    pending = {name: [i for i in range(items) if store.get(identity(name, i)) is None] for name in runs}
    for name, item, timed in interleave(runs, items, console, pending=pending, meter=meter):
        store.put(identity(name, item), record(name, item, timed))
    return {name: [store.get(identity(name, i)) for i in range(items)] for name in runs}


def decode_all(
    decoders: Mapping[str, Callable[..., Generation]],
    prompts: Sequence[Prompt],
    settings: SamplingKeywords,
    console: Console,
    *,
    repeats: int | Mapping[str, int] = 1,
) -> dict[str, list[Stats]]:
    """Decode every prompt with every decoder; the seed is the prompt's index.

    Args:
        decoders: ``generate`` functions by name.
        prompts: the prompts.
        settings: keywords of ``generate`` for sampling.
        console: shows the progress bar.
        repeats: passes over the prompts. The runs of a prompt differ only in time; the one of median time is returned.

    Returns:
        The counters by name and prompt.
    """

    def run(name: str, index: int, repeat: int) -> Stats:
        return decoders[name](prompts[index], seed=index, **settings).stats

    stats: dict[str, list[list[Stats]]] = {name: [[] for _ in prompts] for name in decoders}
    runs = {name: partial(run, name) for name in decoders}
    for name, index, timed in interleave(runs, len(prompts), console, repeats=repeats):
        stats[name][index].append(timed.value)
    return {name: [*map(_median_run, by_prompt)] for name, by_prompt in stats.items()}


def _median_run(runs: list[Stats]) -> Stats:
    return sorted(runs, key=lambda stats: stats.seconds + stats.prefill_seconds)[len(runs) // 2]
