"""The parts of a paper's reproduction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot.compare.table import Table

from .specs import Runner


@dataclass(frozen=True)
class Report:
    """The reproduction of one paper.

    Attributes:
        figures: numbers by their names in ``papers.json``.
        draw: writes the plot to a path.
    """

    figures: dict[str, Any]
    tables: list[Table]
    draw: Callable[[Path], None]


@dataclass(frozen=True)
class Paper:
    """One paper: its name on the command line, its title, and the function that reproduces it."""

    name: str
    title: str
    run: Callable[[Runner], Report]


def percent(found: dict[str, float]) -> str:
    """Format a relative change and its 95 % interval in percent."""
    return f"{found['value']:+.1%} ({found['low']:+.1%} to {found['high']:+.1%})"
