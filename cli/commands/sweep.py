"""`specpilot bench sweep` and `bench mixing`: studies that train heads and replay them over held-out texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..bench.mixing_settings import MixingOptions
from ..bench.sweep_settings import SweepOptions


def sweep(
    settings: SweepOptions,
    *,
    folder: Path = Path("runs/sweep"),
    cost: Path | None = None,
    output: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Train SpecDec++'s whole grid of heads and compare it with fixed lengths (Tables 1 to 3, Figure 4).

    Args:
        folder: What is made on the way; a sweep that was cut short goes on there, and nothing is computed twice.
        cost: File of `specpilot bench cost --output`; by default the costs are measured.
        output: File that gets the same JSON.
        plot: PNG file for Figure 4; by default in the folder.
    """
    from rich.console import Console

    from ..bench.plots import plot_sweep
    from ..bench.studies.sweep import run_sweep
    from ..bench.studies.sweep_tables import as_tables
    from ..infer.quiet import quiet

    quiet()
    console = Console(stderr=True)
    result = run_sweep(settings, folder, cost, console)
    for table in as_tables(result):
        console.print(table)
    picture = plot or folder / "pareto.png"
    plot_sweep(result["figure_4"], picture, f"{settings.target} + {settings.draft}, {result['judged_prompts']} prompts")
    console.print(f"{picture}: the picture")
    _end(result, settings, output)


def mixing(
    settings: MixingOptions,
    *,
    folder: Path = Path("runs/mixing"),
    output: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Train heads with more or fewer target tokens mixed in, on datasets that agree more or less (SpecDec++ §3.3).

    Args:
        folder: What is made on the way; a study that was cut short goes on there.
        output: File that gets the same JSON.
        plot: PNG file for the curves; by default in the folder.
    """
    from rich.console import Console

    from ..bench.plots import plot_mixing
    from ..bench.studies.mixing import as_table, run_mixing
    from ..infer.quiet import quiet

    quiet()
    console = Console(stderr=True)
    result = run_mixing(settings, folder, console)
    console.print(as_table(result))
    picture = plot or folder / "mixing.png"
    plot_mixing(result["rows"], picture)
    console.print(f"{picture}: the picture")
    _end(result, settings, output)


def _end(result: dict[str, Any], settings: Any, output: Path | None) -> None:
    """The result as one line of JSON, with what it was made of and on; also in the file ``output``."""
    import json
    from dataclasses import asdict

    from ..infer.machine import machine, versions

    line = json.dumps(result | {"settings": asdict(settings), "machine": machine(), "versions": versions()})
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(line + "\n", encoding="utf-8")
    print(line)
