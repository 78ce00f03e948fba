"""Matplotlib figures without a display; matplotlib comes with the extra ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specpilot.common.errors import optional_import

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def canvases(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure, and a list of its axes row by row.

    Args:
        width, height: size of the figure in inches.
        rows, columns: numbers of rows and columns of axes.

    Raises:
        InputError: matplotlib is not installed.
    """
    with optional_import("bench"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, [*figure.subplots(rows, columns, squeeze=False).flat]


def label(axes: Axes, x: str, y: str, legend: int | None = 10) -> None:
    """Set the axis labels, a grid, and a legend of font size ``legend``; None for no legend."""
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    if legend is not None:
        axes.legend(fontsize=legend)


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the file's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
