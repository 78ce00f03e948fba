"""`specpilot calibrate`: calibrate the probabilities of an acceptance head."""

from __future__ import annotations

from ..train.options import CalibrateOptions
from .measuring import begin, finish


def calibrate(options: CalibrateOptions) -> None:
    """Calibrate an acceptance head on data it was not trained on; the last line printed is one JSON document.

    The calibration is fitted to half of the prompts and evaluated on the other half.
    """
    from rich.table import Table

    from ..train import calibrate as calibrator

    console = begin()
    result = calibrator.calibrate(
        options.controller,
        options.data,
        options.output,
        method=options.method,
        draft=options.draft,
        validation_fraction=options.validation_fraction,
        device=options.device,
        plot=options.plot,
        overwrite=options.overwrite,
    )
    table = Table("calibration", "AUROC", "Brier", "KL", "ECE", title=f"{result['judged']} held-out positions")
    for name, judged in result["metrics"].items():
        table.add_row(name, *(f"{judged[key]:.4f}" for key in ("auroc", "brier", "kl", "ece")))
    console.print(table)
    print(f"{options.output}: the calibrated controller; with --cost FILE it needs no threshold")
    finish(result, options, options.report)
