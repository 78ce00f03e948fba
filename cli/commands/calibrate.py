"""`specpilot calibrate`: a controller in, the same with probabilities that mean what they say out."""

from __future__ import annotations

from pathlib import Path


def calibrate(
    controller: str,
    *,
    data: str,
    output: Path,
    method: str = "platt",
    draft: str | None = None,
    validation_fraction: float = 0.1,
    device: str = "auto",
    plot: Path | None = None,
    report: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Calibrate an acceptance head on data it was not trained on; one JSON document is the last line printed.

    Half of the prompts are fitted to, the other half judged on.

    Args:
        controller: Checkpoint: a folder, a hub id or a shipped name.
        data: Folder written by `specpilot data acceptance` for the same pair.
        output: Folder of the calibrated checkpoint.
        method: weights (undo the loss weights), temperature, platt or isotonic.
        draft: The draft model the data was made with, if it is elsewhere now.
        validation_fraction: If the head was trained on this very data, the share of prompts that training held out.
        device: auto, cpu, cuda, …
        plot: PNG file for a reliability plot.
        report: File that gets the same JSON.
        overwrite: Replace a checkpoint that is there already.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from ..infer.machine import machine, versions
    from ..infer.quiet import quiet
    from ..train import calibrate as calibrator

    quiet()
    result = calibrator.calibrate(
        controller,
        data,
        output,
        method=method,
        draft=draft,
        validation_fraction=validation_fraction,
        device=device,
        plot=plot,
        overwrite=overwrite,
    )
    table = Table("calibration", "AUROC", "Brier", "KL", "ECE", title=f"{result['judged']} held-out positions")
    for name, judged in result["metrics"].items():
        table.add_row(name, *(f"{judged[key]:.4f}" for key in ("auroc", "brier", "kl", "ece")))
    Console(stderr=True).print(table)
    print(f"{output}: calibrated; with --cost FILE it stops by cost, without a threshold")
    settings = {"controller": controller, "data": data, "validation_fraction": validation_fraction}
    line = json.dumps(result | {"settings": settings, "machine": machine(), "versions": versions()})
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(line + "\n", encoding="utf-8")
    print(line)
