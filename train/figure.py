"""Matplotlib figures; matplotlib comes with the extra ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..common.errors import optional_import
from ..common.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def check_matplotlib() -> None:
    """Raise InputError if matplotlib is not installed, before a command that plots does its work."""
    with optional_import("bench"):
        import matplotlib  # noqa: F401


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of the given size in inches, and its axes."""
    figure, (axes,) = canvases(width, height, 1, 1)
    return figure, axes


def canvases(width: float, height: float, rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure of the given size in inches, and its axes row by row.

    Raises:
        InputError: matplotlib is not installed.
    """
    with optional_import("bench"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
        from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [*figure.subplots(rows, columns, squeeze=False).flat]


def label(axes: Axes, x: str, y: str, legend: int | None = 10) -> None:
    """Set the axis labels, a grid, and a legend of font size ``legend``; None for no legend."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    if legend is not None:
        axes.legend(fontsize=legend)


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the file's suffix, replacing an existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, format=path.suffix.lstrip("."))
