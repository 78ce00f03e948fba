"""`specpilot bench ablation`: what every step from SpecDec++'s head to ours gains."""

from __future__ import annotations

from pathlib import Path

from ..bench.ablation_settings import AblationOptions


def ablation(settings: AblationOptions, *, folder: Path = Path("runs/ablation"), output: Path | None = None) -> None:
    """Replay rules of stopping and trained controllers over held-out texts, and compare them by eq. 2.3.

    Args:
        folder: What is computed on the way; a run that was cut short goes on there, and nothing is computed twice.
        output: File that gets the same JSON.
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from ..bench.studies.ablation import run_ablation
    from ..bench.studies.ablation_tables import as_tables
    from ..infer.machine import machine, versions
    from ..infer.quiet import quiet

    quiet()
    console = Console(stderr=True)
    result = run_ablation(settings, folder, console)
    for table in as_tables(result):
        console.print(table)
    line = json.dumps(result | {"settings": asdict(settings), "machine": machine(), "versions": versions()})
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(line + "\n", encoding="utf-8")
    print(line)
