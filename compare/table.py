"""A table of results, shown on the terminal or written as Markdown."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.markup import escape
from rich.measure import Measurement
from rich.text import Text

Row = dict[str, str]  # cells by column


@dataclass(frozen=True)
class Table:
    """A table. Its columns are those of all rows. ``[bold]…[/bold]`` in cells is the only markup.

    Attributes:
        title: the title.
        rows: cells by column, for each row.
        note: text below the table, such as differences from a paper; empty without a note.
    """

    title: str
    rows: Sequence[Row]
    note: str = ""

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def beside(self, paper: Sequence[Row], note: str) -> Table:
        """Return this table with further cells in each row.

        Args:
            paper: the cells, such as the numbers of a paper, for each row of this table.
            note: the note of the new table.
        """
        return Table(self.title, [row | cells for row, cells in zip(self.rows, paper, strict=True)], note)

    def markdown(self) -> str:
        """Return the table as Markdown: the title as a heading, the rows, and the note."""
        lines = [f"### {self.title}", "", self.markdown_rows()]
        return "\n".join([*lines, "", *([f"What differs: {self.note}", ""] if self.note else [])])

    def markdown_rows(self) -> str:
        columns = self.columns
        lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        cells = ([row.get(name, "").replace("|", r"\|") for name in columns] for row in self.rows)
        lines += [f"| {' | '.join(row)} |" for row in cells]
        return re.sub(r"\[/?bold\]", "**", "\n".join(lines))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[rich.table.Table]:
        """Render the table. In a narrow terminal, headers have a line for each word, and names are not broken."""
        table = self._with_headers(self.columns)
        if Measurement.get(console, options.update(max_width=sys.maxsize), table).maximum > options.max_width:
            table = self._with_headers([name.replace(" ", "\n") for name in self.columns])
        yield table

    def _with_headers(self, headers: Sequence[str]) -> rich.table.Table:
        title, note = Text(self.title, "table.title"), Text(self.note, "table.caption")
        table = rich.table.Table(title=title or None, caption=note or None, box=SIMPLE_HEAD, padding=0, pad_edge=False)
        table.caption_justify = "left"
        for index, (header, name) in enumerate(zip(headers, self.columns, strict=True)):
            is_single_word = not any(" " in row.get(name, "") for row in self.rows)
            table.add_column(
                header, justify="right" if index else "left", overflow="fold", no_wrap=index == 0 and is_single_word
            )
        for row in self.rows:
            cells = (re.sub(r"\\(\[/?bold\])", r"\1", escape(row.get(name, ""))) for name in self.columns)
            table.add_row(*map(Text.from_markup, cells))
        return table
