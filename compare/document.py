"""A document of sentences, pictures and tables, as one page (``page.html.jinja``) and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby

from jinja2 import Environment
from markupsafe import Markup, escape

from .chart import Bars, Chart
from .table import Row, Table

FOLDER = files(__package__)
ENVIRONMENT = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
ENVIRONMENT.filters["bold"] = lambda cell: Markup(re.sub(r"\[(/?)bold\]", r"<\1b>", str(escape(cell))))
ENVIRONMENT.globals["style"] = Markup(FOLDER.joinpath("page.css").read_text(encoding="utf-8"))
PAGE = ENVIRONMENT.from_string(FOLDER.joinpath("page.html.jinja").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Mosaic:
    """A prompt, and texts by title: pieces (``by``, ``text``) with who wrote each, as ``writers`` says in words."""

    prompt: str
    texts: Mapping[str, Sequence[Mapping[str, str]]]
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
