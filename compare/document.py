"""A document of sentences, pictures and tables, as one page (``page.html.jinja``) and as Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import groupby
from typing import ClassVar, NamedTuple

import numpy as np
from jinja2 import Environment
from markupsafe import Markup, escape

from .results import Piece
from .table import Row, Table

FOLDER = files(__package__)
ENVIRONMENT = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
ENVIRONMENT.filters["bold"] = lambda cell: Markup(re.sub(r"\[(/?)bold\]", r"<\1b>", str(escape(cell))))
ENVIRONMENT.globals["style"] = Markup(FOLDER.joinpath("page.css").read_text(encoding="utf-8"))
PAGE = ENVIRONMENT.from_string(FOLDER.joinpath("page.html.jinja").read_text(encoding="utf-8"))


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


@dataclass(frozen=True)
class Mosaic:
    """Texts in pieces that are coloured by who wrote each.

    Attributes:
        prompt: the prompt of the texts.
        texts: pieces by title.
        writers: the legend: a description of each writer.
    """

    prompt: str
    texts: Mapping[str, Sequence[Piece]]
    writers: Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """A part of a document; its pictures are on the page alone.

    Attributes:
        rows: of its table.
        narrow: whether the page has it beside the next ones.
    """

    title: str
    note: str
    rows: Sequence[Row] = ()
    chart: Chart | None = None
    bars: Bars | None = None
    mosaic: Mosaic | None = None
    narrow: bool = False

    @property
    def table(self) -> Table:
        """Its table for a terminal."""
        return Table(self.title, self.rows, self.note)

    @property
    def empty(self) -> bool:
        return not (self.rows or self.bars or self.mosaic or (self.chart and self.chart.drawn))


@dataclass(frozen=True)
class Document:
    """What a report says.

    Attributes:
        commands: to act on it, by what they do.
        remarks: how it was measured.
    """

    title: str
    sentences: Sequence[str]
    commands: Mapping[str, str]
    sections: Sequence[Section]
    remarks: Sequence[str]

    @property
    def grouped(self) -> list[tuple[bool, list[Section]]]:
        """Its sections in runs of narrow ones and others."""
        return [(narrow, [*several]) for narrow, several in groupby(self.sections, lambda section: section.narrow)]

    def html(self) -> str:
        """The document within a page, such as a notebook's."""
        return PAGE.render(documents=[self])

    def markdown(self) -> str:
        """The document without its pictures."""
        lines = [f"# {self.title}", "", " ".join(self.sentences), ""]
        lines += ["```bash", *self.commands.values(), "```", ""] if self.commands else []
        for section in self.sections:
            if section.rows:
                lines += [f"## {section.title}", "", section.table.markdown_rows(), "", section.note, ""]
        return "\n".join([*lines, *(f"* {remark}" for remark in self.remarks), ""])


def page(documents: Sequence[Document]) -> str:
    """A whole page of documents."""
    return PAGE.render(documents=documents, whole=True)
