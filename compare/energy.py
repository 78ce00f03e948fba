"""Energy in joules, read from hardware counters (Qin et al. 2025, §4 and Appendix D, poll the power every second).

GPUs need the `zeus` extra; CPU packages need readable powercap files. Without a counter the result is "not available",
never an estimate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

NOT_AVAILABLE = "not available"
POWERCAP = Path("/sys/class/powercap")
IDLE_SECONDS = 5.0


class Counter(Protocol):
    """A device that counts the joules it has used."""

    @property
    def name(self) -> str:
        """Name of the device."""
        ...

    @property
    def wraps_at(self) -> float:
        """Joules after which the counter restarts at zero; infinite if it never does."""
        ...

    def joules(self) -> float:
        """Joules used since an unspecified moment."""
        ...


@dataclass(frozen=True)
class PackageCounter:
    """One CPU package, read through Linux's powercap interface (Intel and AMD)."""

    name: str
    folder: Path
    wraps_at: float

    @classmethod
    def find(cls, root: Path = POWERCAP) -> list[PackageCounter]:
        """All packages whose counter this process may read; a package includes its cores and memory."""
        found = []
        for folder in sorted(root.glob("*-rapl:*")):
            try:
                name = (folder / "name").read_text().strip()
                if not name.startswith("package"):
                    continue
                counter = cls(name, folder, int((folder / "max_energy_range_uj").read_text()) / 1e6)
                counter.joules()
            except (OSError, ValueError):  # most systems let only root read it
                continue
            found.append(counter)
        return found

    def joules(self) -> float:
        return int((self.folder / "energy_uj").read_text()) / 1e6


class GpuCounter:
    """One GPU, read through zeus."""

    wraps_at = float("inf")

    def __init__(self, index: int) -> None:
        from zeus.device import get_gpus

        self.gpus, self.index = get_gpus(), index
        self.name = f"gpu-{index}"

    def joules(self) -> float:
        return float(self.gpus.get_total_energy_consumption(self.index)) / 1000  # millijoules

    @classmethod
    def find(cls) -> list[GpuCounter]:
        """All GPUs this process sees, if zeus is installed and they count energy."""
        try:
            from zeus.device import get_gpus
            from zeus.device.gpu import ZeusGPUInitError
        except ImportError:
            return []
        try:
            gpus = get_gpus()
        except ZeusGPUInitError:
            return []
        return [cls(i) for i in range(len(gpus)) if gpus.supports_get_total_energy_consumption(i)]


def counters(device: str) -> list[Counter]:
    """Energy counters for work on ``device`` (``cpu``, ``cuda``): the CPU packages, and for ``cuda`` the GPUs."""
    gpus = GpuCounter.find() if device == "cuda" else []
    return [*gpus, *PackageCounter.find()]


@dataclass
class Reading:
    """Joules by device, and seconds, of one interval."""

    joules: dict[str, float]
    seconds: float

    @property
    def total(self) -> float | None:
        """Joules of all devices; None without a counter."""
        return sum(self.joules.values()) if self.joules else None


class Meter:
    """Measures the energy of intervals. An interval must be shorter than a counter takes to restart (minutes).

    Args:
        counters: the counters to read; may be empty.
        clock: returns the time in seconds.
    """

    def __init__(self, counters: Sequence[Counter], clock: Callable[[], float] = time.perf_counter) -> None:
        self.counters, self.clock = counters, clock

    @contextmanager
    def interval(self) -> Iterator[Reading]:
        """Yield a reading that is filled in when the block ends."""
        reading = Reading({}, 0.0)
        before = [counter.joules() for counter in self.counters]
        started = self.clock()
        yield reading
        reading.seconds = self.clock() - started
        for counter, start in zip(self.counters, before, strict=True):
            used = counter.joules() - start
            reading.joules[counter.name] = used if used >= 0 else used + counter.wraps_at

    def idle_watts(self, seconds: float = IDLE_SECONDS, sleep: Callable[[float], None] = time.sleep) -> float | None:
        """Power in watts while this process is idle, None without counters; reported, not subtracted from results."""
        if not self.counters:
            return None
        with self.interval() as reading:
            sleep(seconds)
        assert reading.total is not None
        return reading.total / reading.seconds
