"""Energy of a known power, counted by a monitor with the interface of zeus."""

from types import SimpleNamespace

import pytest
from specpilot.compare.runner import Meter


class Monitor:
    """A GPU at 60 W and a processor at 40 W, on a clock that is moved by hand."""

    def __init__(self, *, cpu: bool = True) -> None:
        self.now, self.cpu = 0.0, cpu
        self.begun: dict[str, float] = {}

    def begin_window(self, key: str, restart: bool) -> None:
        assert restart or key not in self.begun
        self.begun[key] = self.now

    def end_window(self, key: str) -> SimpleNamespace:
        seconds = self.now - self.begun.pop(key)
        return SimpleNamespace(gpu_energy={0: 60 * seconds}, cpu_energy={0: 40 * seconds} if self.cpu else None)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("cpu", "watts"), [(True, 100), (False, 60)])
def test_devices_add_up_and_pauses_do_not_count(cpu: bool, watts: float) -> None:
    monitor = Monitor(cpu=cpu)
    meter, found = Meter(monitor), []
    for work, pause in [(7.5, 1.0), (2.25, 5.5), (12.0, 0.5)]:
        meter.begin()
        monitor.sleep(work)
        found.append(meter.end())
        monitor.sleep(pause)
    assert found == [7.5 * watts, 2.25 * watts, 12 * watts]
    assert meter.idle_watts(3, monitor.sleep) == watts


def test_an_interval_that_failed_is_begun_again() -> None:
    monitor = Monitor()
    meter = Meter(monitor)
    meter.begin()
    monitor.sleep(2)
    meter.begin()
    monitor.sleep(1)
    assert meter.end() == 100


def test_without_counters_nothing_is_made_up() -> None:
    meter = Meter()
    meter.begin()
    assert meter.end() is None
    assert meter.idle_watts() is None
