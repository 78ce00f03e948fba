"""Tables with the paper's figures beside ours, and what a paper's reproduction consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .runner import Runner

QUALITY = "perplexity"


@dataclass(frozen=True)
class Row:
    """One row: cells by column; ``lossy`` where the text has another law than the target's."""

    cells: dict[str, str]
    lossy: bool = False


@dataclass(frozen=True)
class Table:
    """A table of a report. Every lossy row must say what its text is worth.

    Attributes:
        differs: what is other than in the paper: models, hardware, prompts.
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
    """What a paper's reproduction gives.

    Attributes:
        figures: numbers, by the names they have in ``papers.json``.
        draw: writes the picture.
    """

    figures: dict[str, Any]
    tables: list[Table]
    draw: Callable[[Path], None]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Paper:
    """One paper: its name on the command line, its title, and what reproduces it."""

    name: str
    title: str
    run: Callable[[Runner], Report]


def number(found: dict[str, float], digits: int = 2) -> str:
    """A value and its 95 % interval."""
    return f"{found['value']:.{digits}f} ({found['low']:.{digits}f}–{found['high']:.{digits}f})"


def percent(found: dict[str, float]) -> str:
    """A change and its 95 % interval."""
    return f"{found['value']:+.1%} ({found['low']:+.1%} to {found['high']:+.1%})"
