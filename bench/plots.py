"""Pictures made from benchmark results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

STYLES = {"fixed": ("o-", "fixed K"), "confidence": ("^--", "cumulative confidence"), "head": ("s-", "acceptance head")}


def plot_pareto(decoders: Mapping[str, Mapping[str, float]], path: Path, title: str) -> None:
    """Discard rate against verification rate, a line a family (SpecDec++ Figure 4): down and left is better.

    Args:
        decoders: ``family-parameter`` → row with ``discard_rate`` and ``verification_rate``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
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
