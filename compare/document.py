"""Documents of conclusions, figures and tables, as one page (``page.html.jinja``) and as Markdown."""

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
METHOD = "Method"  # the title of the last section
ENVIRONMENT.globals["method"] = METHOD
PAGE = ENVIRONMENT.from_string(FOLDER.joinpath("page.html.jinja").read_text(encoding="utf-8"))


class Point(NamedTuple):
    """A point of a line, and the ends of its interval.

    ``str`` returns the text that browsers show on the point.

    Attributes:
        low, high: the ends of the interval of ``y``; None without an interval.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        bounds = "" if self.low is None else f" ({self.low:.3f}–{self.high:.3f})"
        return f"{self.x:.3g}, {self.y:.3f}{bounds}"


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values to coordinates on the page.

    Attributes:
        ticks: marked values; the first and the last one are the ends of the scale.
        start, end: the coordinates of the first and the last tick.
        log: whether the map is logarithmic.
    """

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
        lines: points by name of the line.
        ticks: marked values of x; the first and the last one are the ends of the axis.
        log: whether the x axis is logarithmic.
        shares: whether the y axis is from 0 to 1; otherwise a dashed line is drawn at y = 1.
        diagonal: whether to draw the dashed line y = x.
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
        """The lines that have two points or more."""
        return {name: points for name, points in self.lines.items() if len(points) > 1}

    @property
    def x_scale(self) -> Scale:
        """The scale of the x axis, in units of the picture's width."""
        return Scale(self.ticks, self.left, self.right, self.log)

    @property
    def y_scale(self) -> Scale:
        """The scale of the y axis, in units of the picture's height."""
        if self.shares:
            return Scale([0, 0.2, 0.4, 0.6, 0.8, 1], self.bottom, self.top)
        places = [1.0, *(y for points in self.drawn.values() for p in points for y in p[1:] if y is not None)]
        steps = (factor * 10.0**power for power in range(-2, 9) for factor in (1, 2, 5))
        step = next(step for step in steps if max(places) - min(places) <= 5 * step)
        low, high = math.floor(min(places) / step), math.ceil(max(places) / step)
        return Scale([*(step * np.arange(low, high + 1))], self.bottom, self.top)


class Bar(NamedTuple):
    """A row of a chart: a value on a scale that all rows share.

    Attributes:
        name: the label of the row.
        text: the value as text.
        at: the value; None without one.
        low, high: the ends of the value's interval; None without an interval.
        other: a second value, shown as a hollow point; None without one.
        best: whether to emphasise the row.
    """

    name: str
    text: str
    at: float | None = None
    low: float | None = None
    high: float | None = None
    other: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Bars:
    """Values one below the other.

    Attributes:
        rows: the values.
        reference: the value at which a dashed line is drawn.
        key: whether a legend explains filled and hollow points.
    """

    rows: Sequence[Bar]
    reference: float = 1.0
    key: bool = False

    @cached_property
    def scale(self) -> Scale:
        """The scale of the values, in percent from the left."""
        places = [self.reference, *(x for row in self.rows for x in row[2:6] if x is not None)]
        margin = (max(places) - min(places)) * 0.04 or 0.1
        return Scale([min(places) - margin, max(places) + margin], 0, 100)


@dataclass(frozen=True)
class Mosaic:
    """Texts whose pieces are coloured by their source.

    Attributes:
        prompt: the prompt of the texts.
        texts: pieces of each text, by its title.
        writers: the legend: a description of each source.
    """

    prompt: str
    texts: Mapping[str, Sequence[Piece]]
    writers: Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """A section of a document. Figures (chart, bars and mosaic) are shown on the page only.

    Attributes:
        title: the heading.
        note: what the section shows and what its columns mean.
        rows: the rows of the table.
        narrow: whether the page places the section beside the next narrow ones.
        reading: a sentence on how to read the figure; shown with the figure.
        folded: whether the page folds the table until the reader opens it.
    """

    title: str
    note: str
    rows: Sequence[Row] = ()
    chart: Chart | None = None
    bars: Bars | None = None
    mosaic: Mosaic | None = None
    narrow: bool = False
    reading: str = ""
    folded: bool = False

    @property
    def anchor(self) -> str:
        """The name by which links of the page name the section."""
        return re.sub(r"[^a-z]+", "-", self.title.lower()).strip("-")

    @property
    def has_figure(self) -> bool:
        """Return true if the section has a figure that is not empty."""
        return bool(self.bars or self.mosaic or (self.chart and self.chart.drawn))

    @property
    def table(self) -> Table:
        """The section's table for a terminal."""
        return Table(self.title, self.rows, self.note)

    @property
    def empty(self) -> bool:
        """Return true if the section has neither a table nor a figure."""
        return not (self.rows or self.has_figure)


@dataclass(frozen=True)
class Document:
    """A report to read: conclusions first, then figures and tables, and the method last.

    Attributes:
        title: the heading.
        sentences: the conclusions, the most important one first.
        commands: commands that act on the conclusions, by their purpose.
        sections: figures and tables.
        remarks: sentences about the method.
    """

    title: str
    sentences: Sequence[str]
    commands: Mapping[str, str]
    sections: Sequence[Section]
    remarks: Sequence[str]

    @property
    def grouped(self) -> list[tuple[bool, list[Section]]]:
        """Runs of sections that are narrow, or not: (whether they are narrow, the sections)."""
        return [(narrow, [*sections]) for narrow, sections in groupby(self.sections, lambda section: section.narrow)]

    def html(self) -> str:
        """Return the document as HTML for a place within a page, such as a notebook's."""
        return PAGE.render(documents=[self])

    def markdown(self) -> str:
        """Return the document as Markdown, without figures."""
        lines = [f"# {self.title}", "", " ".join(self.sentences), ""]
        lines += ["```bash", *self.commands.values(), "```", ""] if self.commands else []
        for section in self.sections:
            if section.rows:
                lines += [f"## {section.title}", "", section.table.markdown_rows(), "", section.note, ""]
        return "\n".join([*lines, f"## {METHOD}", "", *(f"* {remark}" for remark in self.remarks), ""])


def page(documents: Sequence[Document]) -> str:
    """Return a whole page with a table of contents and the documents."""
    return PAGE.render(documents=documents, whole=True)
