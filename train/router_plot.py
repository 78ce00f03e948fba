"""Plot of a router's choices by domain and by best arm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .figure import canvases, save


def plot_choices(choices: Mapping[str, Any], path: Path) -> None:
    """Plot two tables of counts, coloured by share of the row: domain × arm, and best arm × chosen arm."""
    arms = choices["arms"]
    figure, panels = canvases(4 + 1.6 * len(arms), 5, 1, 2)
    tables = (
        ("domain", list(choices["by_domain"]), np.array(list(choices["by_domain"].values()))),
        ("best arm of the query", arms, np.array(choices["confusion"])),
    )
    for axes, (title, rows, counts) in zip(panels, tables, strict=True):
        axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axes.set_xticks(range(len(arms)), arms, rotation=45, ha="right")
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xlabel("chosen arm")
        axes.set_title(title)
        for (row, column), count in np.ndenumerate(counts):
            axes.text(column, row, str(count), ha="center", va="center")
    save(figure, path)
