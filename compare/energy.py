"""Energy in joules, which zeus reads from hardware counters (Qin et al. 2025, §4 and Appendix D, poll the power).

It comes with the extra ``zeus``. Without it, or without a counter that this process may read, the result is "not
available", never an estimate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

NOT_AVAILABLE = "not available"
IDLE_SECONDS = 5.0
WINDOW = "specpilot"  # name of the interval in zeus


class Meter:
    """Measures the energy of intervals.

    Args:
        monitor: a ``zeus.monitor.ZeusMonitor``; None measures nothing.
    """

    def __init__(self, monitor: Any = None) -> None:
        self.monitor = monitor

    @classmethod
    def find(cls, device: str) -> Meter:
        """The meter for work on ``device`` (``cpu``, ``cuda``): of the CPU packages, and for ``cuda`` of the GPUs."""
        try:
            from zeus.monitor import ZeusMonitor
        except ImportError:
            return cls()
        monitor = ZeusMonitor(gpu_indices=None if device == "cuda" else [])
        return cls(monitor if monitor.gpu_indices or monitor.cpu_indices else None)

    def begin(self) -> None:
        """Begin an interval; one that was not ended is forgotten."""
        if self.monitor is not None:
            self.monitor.begin_window(WINDOW, restart=True)

    def end(self) -> float | None:
        """Joules of the interval, of all devices; None without a counter."""
        if self.monitor is None:
            return None
        found = self.monitor.end_window(WINDOW)
        return float(sum(found.gpu_energy.values()) + sum((found.cpu_energy or {}).values()))

    def idle_watts(self, seconds: float = IDLE_SECONDS, sleep: Callable[[float], None] = time.sleep) -> float | None:
        """Power in watts while this process is idle, None without counters; reported, not subtracted from results."""
        if self.monitor is None:
            return None  # and no time is spent
        self.begin()
        sleep(seconds)
        joules = self.end()
        return None if joules is None else joules / seconds
