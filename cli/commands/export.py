"""`specpilot export`, `calibrate` and `trim-vocabulary`: commands for trained controllers and drafts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ...train.options import CalibrateOptions, ExportOptions, TrimOptions
from .measuring import begin, finish


def export(options: ExportOptions) -> None:
    """Write a run's best weights as a checkpoint."""
    from ...common.console import quiet
    from ...controllers.checkpoints.checkpoint import push_controller
    from ...controllers.checkpoints.hub import upload
    from ...models.loading.draft_folder import is_draft
    from ...models.loading.eagle3_folder import is_eagle3_folder
    from ...models.loading.transformers_folder import is_transformers_draft
    from ...train import export as exporter
    from ...train.options import DraftTrainingOptions
    from ...train.run_folder import read_run

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
        target = read_run(options.run, DraftTrainingOptions).dataset.target
        print(f"{folder}: a draft. Decode with it: {_decoding_command('--target', target, '--draft', folder)}")
        if options.push_to is not None:
            files = [path.name for path in folder.iterdir()]
            print(upload(folder, options.push_to, files, message="Upload draft", private=options.private))
        return
    command = _controller_command(folder, options.predictor or "")
    print(f"{folder}: a controller checkpoint. Decode with it: {command}")
    if options.push_to is not None:
        print(push_controller(folder, options.push_to, private=options.private))


def calibrate(options: CalibrateOptions) -> None:
    """Calibrate an acceptance head on data it was not trained on.

    The calibration is fitted to half of the prompts and evaluated on the other half. The last line printed is one JSON
    document.
    """
    from rich.table import Table

    from ...controllers.user_modules import CHECKPOINT
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
    checkpoint = CHECKPOINT.fullmatch(options.controller)
    command = _controller_command(options.output, checkpoint["kind"] if checkpoint else "", costs=True)
    print(f"{options.output}: a calibrated controller checkpoint. Decode with it: {command}")
    finish(result.to_dict(), options, options.report)


def trim_vocabulary(options: TrimOptions) -> None:
    """Restrict a draft to the most frequent tokens of some text.

    All other tokens get probability 0.
    """
    from ...checkpoints import shipped
    from ...common.console import quiet
    from ...infer.plan import TARGET
    from ...train.draft import trim_vocabulary as trim

    quiet()
    folder = trim(options)
    target = options.target or (TARGET if shipped(options.draft) else None)
    if target is None:
        draft = f"--draft {shlex.quote(str(folder))}"
        step = f"To decode with it, pass {draft} to 'specpilot generate', and the target of the draft as --target."
    else:
        step = f"Decode with it: {_decoding_command('--target', target, '--draft', folder)}"
    print(f"{folder}: a draft that proposes {options.keep} tokens. {step}")


def _controller_command(folder: Path, kind: str, *, costs: bool = False) -> str:
    """Return the command that decodes with the controller in ``folder`` and the models that it was trained for.

    Args:
        folder: the checkpoint.
        kind: name of the kind of the controller; ``module:Config`` if it is not part of specpilot.
        costs: whether drafts end by costs although the checkpoint has a threshold.
    """
    from ...controllers.checkpoints.checkpoint import read_config
    from ...controllers.user_modules import CONFIG

    config = read_config(folder)
    models = config.provenance
    draft = "ngram" if config.option == "copies" else models.draft
    words = ["--target", models.target, *([] if draft is None else ["--draft", draft])]
    words += [f"--{config.option}", f"{kind}:{folder}" if re.fullmatch(CONFIG, kind) else str(folder)]
    if config.option == "length" and (costs or config.default_threshold is None):
        words += ["--cost", "auto"]
    return _decoding_command(*words)


def _decoding_command(*words: str | Path) -> str:
    """Return a command that decodes an example with the options ``words``."""
    from ...compare.findings import EXAMPLE

    return shlex.join(["specpilot", "generate", *map(str, words), EXAMPLE])
