"""A document of sentences, pictures and tables, as one page without scripts that asks no host for anything, and as
Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import groupby

from .table import Row, Table

STYLE = files(__package__).joinpath("document.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # even what is inserted by error loads nothing


@dataclass(frozen=True)
class Section:
    """A part of a document.

    Attributes:
        pictures: HTML, on the page alone.
        rows: of its table.
        narrow: whether the page has it beside the next ones.
    """

    title: str
    note: str
    pictures: str = ""
    rows: Sequence[Row] = ()
    narrow: bool = False

    @property
    def table(self) -> Table:
        """Its table for a terminal."""
        return Table(self.title, self.rows, self.note)

    def html(self) -> str:
        """The section of a page."""
        return (
            f'<section><h2>{escape(self.title)}</h2><p class="note">{escape(self.note)}</p>{self.pictures}'
            f"{_table(Table('', self.rows)) if self.rows else ''}</section>"
        )


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

    def html(self) -> str:
        """The document within a page, such as a notebook's."""
        first, *rest = self.sentences
        parts = [f"<h1>{escape(self.title)}</h1>", f'<p class="lead">{escape(first)}</p>']
        parts += [f"<p>{escape(line)}</p>" for line in rest]
        parts += [f'<p class="note">{escape(n)}</p><pre>{escape(line)}</pre>' for n, line in self.commands.items()]
        for narrow, several in groupby(self.sections, lambda section: section.narrow):
            body = "".join(section.html() for section in several)
            parts.append(f'<div class="grid">{body}</div>' if narrow else body)
        parts.append(f"<h2>How it was measured</h2><ul>{''.join(f'<li>{escape(r)}</li>' for r in self.remarks)}</ul>")
        return f'<div class="specpilot"><style>{STYLE}</style>{"".join(parts)}</div>'

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
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(documents[0].title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<style>body{margin:0}@media (prefers-color-scheme:dark){body{background:#14171c}}</style></head>"
        f"<body>{''.join(document.html() for document in documents)}</body></html>\n"
    )


def _table(table: Table) -> str:
    """A table as HTML."""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = ["".join(f"<td>{_bold(row.get(column, ''))}</td>" for column in table.columns) for row in table.rows]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _bold(cell: str) -> str:
    return re.sub(r"\[(/?)bold\]", r"<\1b>", escape(cell))
