"""Pictures made from benchmark results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = {"fixed": ("o-", "fixed K"), "confidence": ("^--", "cumulative confidence"), "head": ("s-", "acceptance head")}


def plot_rates(result: Mapping[str, Any], path: Path) -> None:
    """Tokens per second of every configuration of ``bench decode`` with its interval; each side's best is dark."""
    names = list(result["intervals"])[::-1]
    rates = [result["tokens_per_second"][name] for name in names]
    errors = [
        [max(0.0, rate - result["intervals"][name][0]) for name, rate in zip(names, rates, strict=True)],
        [max(0.0, result["intervals"][name][1] - rate) for name, rate in zip(names, rates, strict=True)],
    ]
    colours = [
        ("tab:blue" if name.startswith("specpilot") else "tab:orange", 1.0 if name in result["best"].values() else 0.5)
        for name in names
    ]
    figure, axes = canvas(8, 8)
    axes.barh(names, rates, xerr=errors, color=colours, error_kw={"elinewidth": 1})
    axes.set_xlabel("tokens per second: median pass, 95 % interval over resampled prompts")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=150)


def plot_pareto(decoders: Mapping[str, Mapping[str, float]], path: Path, title: str) -> None:
    """Discard rate against verification rate, a line a family (SpecDec++ Figure 4): down and left is better.

    Args:
        decoders: ``family-parameter`` → row with ``discard_rate`` and ``verification_rate``.
    """
    figure, axes = canvas(7, 5)
    for family, (style, label) in STYLES.items():
        points = [
            (row["discard_rate"], row["verification_rate"], name.partition("-")[2])
            for name, row in decoders.items()
            if name.partition("-")[0] == family
        ]
        if not points:
            continue
        points.sort()
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], style, label=label, markersize=5)
        for x, y, parameter in points:
            axes.annotate(parameter, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
    axes.set_xlabel("discard rate: discarded draft tokens per generated token")
    axes.set_ylabel("verification rate: target forwards per generated token")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of this size in inches, and its axes."""
    figure, (axes,) = canvases(width, height, 1, 1)
    return figure, axes


def canvases(width: float, height: float, rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure of this size in inches, and its axes row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [*figure.subplots(rows, columns, squeeze=False).flat]
