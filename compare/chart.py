"""Charts of a page without scripts: where their points are. ``page.html.jinja`` draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np


class Point(NamedTuple):
    """A point, and the ends of its interval where there is one; its text is what browsers show on it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        bounds = "" if self.low is None else f" ({self.low:.3f}–{self.high:.3f})"
        return f"{self.x:.3g}, {self.y:.3f}{bounds}"


@dataclass(frozen=True)
class Scale:
    """Maps values from the first to the last of ``ticks`` to the places from ``start`` to ``end``."""

    ticks: Sequence[float]
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        values = value, self.ticks[0], self.ticks[-1]
        at, low, high = map(math.log, values) if self.log else values
        return round(self.start + (at - low) / (high - low or 1.0) * (self.end - self.start), 2)


@dataclass(frozen=True)
class Chart:
    """Lines over common axes.

    Attributes:
        x, y: labels of the axes.
        lines: points by name.
        ticks: of x, whose first and last one are its ends; ``log``: on a logarithmic scale.
        shares: whether y is from 0 to 1; otherwise a line is drawn at y = 1.
        diagonal: whether to draw y = x.
        here: x of a vertical line with that word.
    """

    width: ClassVar[int] = 420
    height: ClassVar[int] = 250
    left: ClassVar[int] = 40
    right: ClassVar[int] = 408
    top: ClassVar[int] = 10
    bottom: ClassVar[int] = 208

    x: str
    y: str
    lines: Mapping[str, Sequence[Point]]
    ticks: Sequence[float]
    log: bool = False
    shares: bool = True
    diagonal: bool = False
    here: float | None = None

    @cached_property
    def drawn(self) -> dict[str, Sequence[Point]]:
        """Its lines of two points or more."""
        return {name: points for name, points in self.lines.items() if len(points) > 1}

    @property
    def across(self) -> Scale:
        return Scale(self.ticks, self.left, self.right, self.log)

    @property
    def up(self) -> Scale:
        if self.shares:
            return Scale([0, 0.2, 0.4, 0.6, 0.8, 1], self.bottom, self.top)
        places = [1.0, *(y for points in self.drawn.values() for p in points for y in p[1:] if y is not None)]
        steps = (factor * 10.0**power for power in range(-2, 9) for factor in (1, 2, 5))
        step = next(step for step in steps if max(places) - min(places) <= 5 * step)
        low, high = math.floor(min(places) / step), math.ceil(max(places) / step)
        return Scale([*(step * np.arange(low, high + 1))], self.bottom, self.top)


class Bar(NamedTuple):
    """A value among others on a common scale.

    Attributes:
        shown: the value in words.
        at, low, high: a point with its interval.
        other: a second, hollow point.
        best: whether to emphasise it.
    """

    name: str
    shown: str
    at: float | None = None
    low: float | None = None
    high: float | None = None
    other: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Bars:
    """Values one below the other, with a line at ``reference``; ``key``: whether both kinds of points are named."""

    rows: Sequence[Bar]
    reference: float = 1.0
    key: bool = False

    @cached_property
    def left(self) -> Scale:
        """Percent from the left of a value."""
        places = [self.reference, *(x for row in self.rows for x in row[2:6] if x is not None)]
        margin = (max(places) - min(places)) * 0.04 or 0.1
        return Scale([min(places) - margin, max(places) + margin], 0, 100)
