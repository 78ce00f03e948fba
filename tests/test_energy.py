"""Energy meters: counters of a known power curve, on a clock that is moved by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from specpilot.compare.energy import Meter, PackageCounter


class World:
    """Time, and a power of 60 + 40·sin(t) watts."""

    def __init__(self) -> None:
        self.now = 0.0

    def used(self, start: float = 0.0, end: float | None = None) -> float:
        """The integral of the power."""
        end = self.now if end is None else end
        return 60 * (end - start) - 40 * (math.cos(end) - math.cos(start))

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Fake:
    """Counts in steps of a hundredth of a joule and comes round at 1000 J."""

    name, wraps_at = "fake", 1000.0

    def __init__(self, world: World) -> None:
        self.world = world

    def joules(self) -> float:
        return round(self.world.used(), 2) % self.wraps_at


def test_a_known_power_curve() -> None:
    world = World()
    meter = Meter([Fake(world)], world.clock)
    total = seconds = expected = 0.0
    for work, pause in [(7.3, 1.0), (2.2, 5.5), (11.9, 0.1), (0.7, 3.0)] * 8:
        start = world.now
        with meter.interval() as reading:
            world.sleep(work)
        assert reading.total is not None
        total, seconds = total + reading.total, seconds + reading.seconds
        expected += world.used(start)
        world.sleep(pause)  # what happens between intervals is not counted
    assert expected > 10_000  # round and round
    assert total == pytest.approx(expected, rel=1e-3)
    assert seconds == pytest.approx(8 * (7.3 + 2.2 + 11.9 + 0.7))


def test_idle_power() -> None:
    world = World()
    meter = Meter([Fake(world)], world.clock)
    assert meter.idle_watts(2 * math.pi, world.sleep) == pytest.approx(60, rel=1e-3)


def test_devices_add_up() -> None:
    world = World()
    one, other = Fake(world), Fake(world)
    other.name = "other"
    with Meter([one, other], world.clock).interval() as reading:
        world.sleep(3)
    assert reading.total == pytest.approx(2 * world.used(), rel=1e-3)
    assert set(reading.joules) == {"fake", "other"}


def test_without_counters_nothing_is_made_up() -> None:
    meter = Meter([])
    with meter.interval() as reading:
        pass
    assert reading.total is None
    assert meter.idle_watts() is None


def zone(root: Path, folder: str, name: str, microjoules: str) -> Path:
    path = root / folder
    path.mkdir()
    (path / "name").write_text(name + "\n")
    (path / "max_energy_range_uj").write_text("262143328850\n")
    (path / "energy_uj").write_text(microjoules + "\n")
    return path


def test_cpu_packages(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", "262143000000")
    zone(tmp_path, "intel-rapl:0:0", "core", "5")
    zone(tmp_path, "intel-rapl:1", "psys", "5")
    zone(tmp_path, "intel-rapl:2", "package-1", "no number")
    found = PackageCounter.find(tmp_path)
    assert [counter.name for counter in found] == ["package-0"]
    with Meter(found).interval() as reading:
        (package / "energy_uj").write_text("1671150\n")  # it has come round
    assert reading.total == pytest.approx(2.0)
    assert PackageCounter.find(tmp_path / "nowhere") == []
