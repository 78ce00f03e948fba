"""Tables with the paper's figures beside ours, and what a paper's reproduction consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .specs import Runner

QUALITY = "perplexity"


@dataclass(frozen=True)
class Row:
    """One row: cells by column; ``lossy`` where the output has another distribution than the target's."""

    cells: dict[str, str]
    lossy: bool = False


@dataclass(frozen=True)
class Table:
    """A table of a report. Every lossy row gives its perplexity.

    Attributes:
        differs: what differs from the paper: models, hardware, prompts.
    """

    title: str
    rows: list[Row]
    differs: str

    def __post_init__(self) -> None:
        for row in self.rows:
            assert not row.lossy or row.cells.get(QUALITY), f"{self.title}: a lossy row without its {QUALITY}"

    def markdown(self) -> str:
        columns = list(dict.fromkeys(name for row in self.rows for name in row.cells))
        lines = [f"### {self.title}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(row.cells.get(name, '') for name in columns)} |" for row in self.rows]
        return "\n".join([*lines, "", f"What differs: {self.differs}", ""])


@dataclass(frozen=True)
class Report:
    """The reproduction of one paper.

    Attributes:
        figures: numbers, by their names in ``papers.json``.
        draw: writes the picture.
    """

    figures: dict[str, Any]
    tables: list[Table]
    draw: Callable[[Path], None]


@dataclass(frozen=True)
class Paper:
    """One paper: its name on the command line, its title, and what reproduces it."""

    name: str
    title: str
    run: Callable[[Runner], Report]


def percent(found: dict[str, float]) -> str:
    """A change and its 95 % interval."""
    return f"{found['value']:+.1%} ({found['low']:+.1%} to {found['high']:+.1%})"
