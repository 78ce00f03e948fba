"""A table of results, shown on the terminal or written as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import rich.table

Row = dict[str, str]  # cells by column


@dataclass(frozen=True)
class Table:
    """Rows of cells; the columns are those of all rows. ``[bold]…[/bold]`` is the only markup.

    Attributes:
        note: printed below the table: differences from the paper.
    """

    title: str
    rows: Sequence[Row]
    note: str = ""

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def beside(self, paper: Sequence[Row], note: str) -> Table:
        """This table with the paper's cells added to each row, and a note."""
        return Table(self.title, [row | cells for row, cells in zip(self.rows, paper, strict=True)], note)

    def markdown(self) -> str:
        """The title as a heading, the rows, and the note."""
        lines = [f"### {self.title}", "", self.markdown_rows()]
        return "\n".join([*lines, "", *([f"What differs: {self.note}", ""] if self.note else [])])

    def markdown_rows(self) -> str:
        columns = self.columns
        lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(row.get(name, '') for name in columns)} |" for row in self.rows]
        return re.sub(r"\[/?bold\]", "**", "\n".join(lines))

    def __rich__(self) -> rich.table.Table:
        table = rich.table.Table(title=self.title or None, caption=self.note or None)
        for index, name in enumerate(self.columns):
            table.add_column(name, justify="right" if index else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(row.get(name, "") for name in self.columns))
        return table
