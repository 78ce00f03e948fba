"""`specpilot export`, `calibrate` and `trim-vocabulary`: commands for trained controllers and drafts."""

from __future__ import annotations

import shlex

from ...train.options import CalibrateOptions, ExportOptions, TrimOptions
from .measuring import begin, finish


def export(options: ExportOptions) -> None:
    """Write a run's best weights as a checkpoint."""
    from ...common.console import quiet
    from ...controllers.checkpoints.checkpoint import push_controller, read_config
    from ...controllers.checkpoints.hub import upload
    from ...models.loading.draft_folder import is_draft
    from ...models.loading.eagle3_folder import is_eagle3_folder
    from ...models.loading.transformers_folder import is_transformers_draft
    from ...train import export as exporter

    quiet()
    folder = exporter.export(
        options.run,
        options.output,
        threshold=options.threshold,
        predictor=options.predictor,
        whole_vocabulary=options.whole_vocabulary,
        overwrite=options.overwrite,
    )
    if is_draft(folder) or is_eagle3_folder(folder) or is_transformers_draft(folder):
        print(f"{folder}: a draft. Decode with it: specpilot generate --draft {shlex.quote(str(folder))}")
        if options.push_to is not None:
            files = [path.name for path in folder.iterdir()]
            print(upload(folder, options.push_to, files, message="Upload draft", private=options.private))
        return
    config = read_config(folder)
    flag = "--draft ngram --copies" if config.option == "copies" else f"--{config.option}"
    costs = " --cost auto" if config.option == "length" and config.default_threshold is None else ""
    print(
        f"{folder}: a controller checkpoint. Decode with it: specpilot generate {flag} "
        f"{shlex.quote(str(folder))}{costs}"
    )
    if options.push_to is not None:
        print(push_controller(folder, options.push_to, private=options.private))


def calibrate(options: CalibrateOptions) -> None:
    """Calibrate an acceptance head on data it was not trained on.

    The calibration is fitted to half of the prompts and evaluated on the other half. The last line printed is one JSON
    document.
    """
    from rich.table import Table

    from ...train import calibration

    console = begin()
    result = calibration.calibrate(options)
    table = Table("calibration", "AUROC", "Brier", "KL", "ECE", title=f"{result.judged} held-out positions")
    for name, judged in result.metrics.items():
        table.add_row(name, *(f"{judged[key]:.4f}" for key in ("auroc", "brier", "kl", "ece")))
    console.print(table)
    for warning in result.warnings:
        print(f"warning: on held-out prompts the calibrated controller {warning}")
    for exponent, acceptance in result.acceptance.items():
        console.print(f"the draft's probabilities to the power {exponent}: expected acceptance {acceptance:.4f}")
    print(
        f"{options.output}: a calibrated controller checkpoint. Decode with it: specpilot generate --length "
        f"{shlex.quote(str(options.output))} --cost auto"
    )
    finish(result.to_dict(), options, options.report)


def trim_vocabulary(options: TrimOptions) -> None:
    """Restrict a draft to the most frequent tokens of some text.

    All other tokens get probability 0.
    """
    from ...common.console import quiet
    from ...train.draft import trim_vocabulary as trim

    quiet()
    folder = trim(options)
    print(
        f"{folder}: a draft that proposes {options.keep} tokens. Decode with it: specpilot generate --draft "
        f"{shlex.quote(str(folder))}"
    )
