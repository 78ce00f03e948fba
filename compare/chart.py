"""Charts as text for a page without scripts: lines in SVG, and values with their intervals in HTML.

Every point carries its numbers as a title, which browsers show on it. Colours are the classes ``c0``, ``c1``, … of the
page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 10, 42
COLOURS = 8
TICKS = 5

Map = Callable[[float], float]


class Point(NamedTuple):
    """A point, and the ends of its interval where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        values: those with a tick; none: round numbers.
        least, most: values that it reaches at least.
        log: whether it is logarithmic.
    """

    label: str
    values: Sequence[float] = ()
    least: float = math.inf
    most: float = -math.inf
    log: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over common axes.

    Attributes:
        lines: points by name.
        marks: x of vertical lines, by their label.
        level: y of a horizontal line.
        diagonal: whether to draw y = x.
    """

    x: Axis
    y: Axis
    lines: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)
    level: float | None = None
    diagonal: bool = False

    def render(self) -> str:
        """An SVG and a legend; empty where no line has two points."""
        lines = {name: points for name, points in self.lines.items() if len(points) > 1}
        if not lines:
            return ""
        points = [point for of in lines.values() for point in of]
        across = [*(point.x for point in points), *self.marks.values()]
        up = [y for point in points for y in (point.y, point.low, point.high) if y is not None]
        x, x_ticks = _scale(self.x, across, LEFT, WIDTH - RIGHT)
        y, y_ticks = _scale(self.y, up if self.level is None else [*up, self.level], HEIGHT - BOTTOM, TOP)
        parts = [
            *(_line(LEFT, y(at), WIDTH - RIGHT, y(at), "grid") + _text(LEFT - 6, y(at) + 4, _number(at), "end")
              for at in y_ticks),
            *(_text(x(at), HEIGHT - BOTTOM + 16, _number(at), "middle") for at in x_ticks),
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, self.x.label, "middle"),
            *(_line(x(at), TOP, x(at), HEIGHT - BOTTOM, "mark") + _mark_label(x(at), label)
              for label, at in self.marks.items()),
        ]  # fmt: skip
        if self.level is not None:
            parts.append(_line(LEFT, y(self.level), WIDTH - RIGHT, y(self.level), "mark"))
        if self.diagonal:
            parts.append(_line(x(0), y(0), x(1), y(1), "mark"))
        for index, (name, of) in enumerate(lines.items()):
            parts += _series(name, of, f"c{index % COLOURS}", x, y)
        names = "".join(f'<li class="c{i % COLOURS}"><i></i>{escape(name)}</li>' for i, name in enumerate(lines))
        title = f"{self.y.label} by {self.x.label}"
        drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
        return f'<p class="axis">{escape(self.y.label)}</p>{drawing}<ul class="legend">{names}</ul>'


def _series(name: str, points: Sequence[Point], colour: str, x: Map, y: Map) -> list[str]:
    bounded = [point for point in points if point.low is not None and point.high is not None]
    edge = [(x(p.x), y(p.low)) for p in bounded] + [(x(p.x), y(p.high)) for p in reversed(bounded)]  # type: ignore[arg-type]
    found = [f'<polygon class="band {colour}" points="{_path(edge)}"/>'] if len(bounded) > 1 else []
    found.append(f'<polyline class="{colour}" points="{_path([(x(p.x), y(p.y)) for p in points])}"/>')
    for point in points:
        said = f"{name}: {_number(point.x)}, {point.y:.3f}"
        if point.low is not None and point.high is not None:
            said += f" ({point.low:.3f}–{point.high:.3f})"
        found.append(
            f'<circle class="{colour}" cx="{x(point.x):.1f}" cy="{y(point.y):.1f}" r="3">'
            f"<title>{escape(said)}</title></circle>"
        )
    return found


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _mark_label(x: float, label: str) -> str:
    right = x < WIDTH * 0.7
    return _text(x + (4 if right else -4), TOP + 10, label, "start" if right else "end")


def _number(value: float) -> str:
    return f"{value:.3g}"


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> tuple[Map, list[float]]:
    """The place of a value on an axis between two places, and the values with a tick."""
    low, high = min(*values, axis.least, *axis.values[:1]), max(*values, axis.most, *axis.values[-1:])
    ticks = [*axis.values]
    if not ticks:
        step = _step((high - low) / TICKS or 1.0)
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        ticks = [low + index * step for index in range(round((high - low) / step) + 1)]
    warp: Map = math.log if axis.log else float
    span = warp(high) - warp(low) or 1.0
    return lambda value: start + (warp(value) - warp(low)) / span * (end - start), ticks


def _step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, … times a power of ten that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


class Bar(NamedTuple):
    """A row of :func:`intervals`.

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


def intervals(rows: Sequence[Bar], reference: float = 1.0) -> str:
    """Values on a common scale, one below the other, with a line at ``reference``."""
    places = [place for row in rows for place in (row.at, row.low, row.high, row.other) if place is not None]
    low, high = min([*places, reference]), max([*places, reference])
    margin = (high - low) * 0.04 or 0.1
    low, high = low - margin, high + margin

    def left(value: float) -> str:
        return f"left:{(value - low) / (high - low):.2%}"

    found = []
    for row in rows:
        marks = [f'<i class="one" style="{left(reference)}"></i>']
        if row.low is not None and row.high is not None:
            marks.append(
                f'<i class="range" style="{left(row.low)};width:{(row.high - row.low) / (high - low):.2%}"></i>'
            )
        marks += [f'<i class="other" style="{left(row.other)}"></i>'] if row.other is not None else []
        marks += [f'<i class="dot" style="{left(row.at)}"></i>'] if row.at is not None else []
        found.append(
            f'<div class="bar{" best" if row.best else ""}"><b>{escape(row.name)}</b>'
            f'<span class="track">{"".join(marks)}</span><span class="value">{escape(row.shown)}</span></div>'
        )
    return f'<div class="bars">{"".join(found)}</div>'
