"""The plot of the sweep: SpecDec++, Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot.train.figure import canvases, label, save

DISCARD = "discard rate: discarded draft tokens per generated token"
VERIFICATION = "verification rate: target forwards per generated token"
STYLES = {
    "fixed": ("o-", "fixed K"),
    "confidence": ("^--", "cumulative confidence"),
    "head": ("s-", "acceptance head"),
}


def plot_sweep(figure_4: Mapping[str, Any], path: Path, title: str) -> None:
    """Plot discard rate against verification rate of every setting (SpecDec++ Figure 4), one panel per set of domains.

    Lower and further left is better. Lines join the parameters of a rule, or for heads the Pareto front.
    """
    figure, axes = canvases(6 * len(figure_4), 5, 1, len(figure_4))
    for panel, (group, points) in zip(axes, figure_4.items(), strict=True):
        families: dict[str, list[tuple[float, float, float]]] = {}
        for point in points:
            family = point["rule"].partition(" ")[0]
            place = point["discard_rate"], point["verification_rate"], point["parameter"]
            families.setdefault(family, []).append(place)
        for family, (style, name) in STYLES.items():
            if family not in families:
                continue
            places = sorted(families[family])
            shown = pareto_front(places) if family == "head" else places
            panel.plot([x for x, _, _ in shown], [y for _, y, _ in shown], style, label=name, markersize=4)
            if family == "head":
                panel.scatter([x for x, _, _ in places], [y for _, y, _ in places], 8, color="tab:green", alpha=0.4)
            if family == "fixed":
                for x, y, parameter in shown:
                    panel.annotate(f"{parameter:g}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
        panel.set_title(group.replace("_", " "))
        label(panel, DISCARD, VERIFICATION)
    figure.suptitle(title)
    save(figure, path)


def pareto_front(points: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The points that no other point beats in both of the first two coordinates; smaller is better."""
    front: list[tuple[float, float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
