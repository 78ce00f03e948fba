"""``specpilot export``: writes the best checkpoint of a run as a controller that the decoder loads."""

from __future__ import annotations

import math
import os
import re
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from ..common.errors import InputError
from ..controllers.arms import Arm, named_apart
from ..controllers.checkpoints.checkpoint import load_controller, save_controller
from ..controllers.checkpoints.config import CONFIG, ControllerConfig
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.checkpoints.provenance import Provenance, prompt_digest
from ..controllers.sampling import SamplingParams
from ..data_gen.dataset import read_manifest
from ..data_gen.kinds import LABELLED, read_dataset
from .controller_module import module_of
from .datasets import fingerprints, is_validation, samplings
from .draft import KIND as DRAFT
from .draft import export_draft
from .options import CONTROLLERS, DraftTrainingOptions, SpecDecTrainingOptions
from .run_folder import Run, read_checkpoint, read_run, run_kind

PAPER_THRESHOLD = 0.7  # of an acceptance head


def export(run: str | Path, output: str | Path, *, threshold: float | None = None, overwrite: bool = False) -> Path:
    """Write the best weights of a training run as a controller checkpoint; returns its folder.

    Args:
        run: folder written by ``specpilot train``; an unfinished run gives its best epoch so far. Or a controller
            checkpoint, which is rewritten in the current format.
        output: checkpoint folder to create.
        threshold: for an acceptance head: stop drafting when the probability of a rejection exceeds it. Default: the
            paper's 0.7.
        overwrite: replace an existing checkpoint.

    Raises:
        InputError: ``run`` is no run or has no finished epoch, ``output`` exists, or the threshold is not in [0, 1].
    """
    run, output = Path(run), Path(output)
    is_controller = (run / CONFIG).is_file()
    kind = run_kind(run)
    if threshold is not None and (is_controller or CONTROLLERS.get(kind) is not SpecDecTrainingOptions):
        what = "an exported controller keeps its own" if is_controller else f"a {kind} controller has none"
        raise InputError(f"threshold={threshold}: {what}; leave it out")
    if is_controller:
        controller = load_controller(run)
        return save_controller(output, controller.head, controller.config, overwrite=overwrite)
    if kind == DRAFT:
        trained = read_run(run, DraftTrainingOptions)
        export_draft(trained, _read_best(trained), output, overwrite=overwrite)
    else:
        trained, head, config = best_controller(run, threshold)
        save_controller(output, head, config, overwrite=overwrite)
    if trained.settings.wandb is not None:
        try:
            _add_to_wandb(trained, output)
        except Exception as error:  # of the package, the network or the service: the checkpoint is there
            warnings.warn(f"{output}: was not added to the run of Weights & Biases ({error})", stacklevel=2)
    return output


def _add_to_wandb(run: Run[Any], output: Path) -> None:
    """Add the checkpoint in ``output`` to the run's own run of Weights & Biases, as an artifact."""
    import wandb

    started = wandb.init(
        project=run.settings.wandb, name=run.folder.name, id=run.id, resume="allow", dir=run.folder,
        mode=None if os.environ.get("WANDB_API_KEY") else "offline",
    )  # fmt: skip
    artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", run.folder.name), type="model")
    artifact.add_dir(str(output))
    started.log_artifact(artifact)
    started.finish()


def best_controller(folder: str | Path, threshold: float | None = None) -> tuple[Run[Any], nn.Module, ControllerConfig]:
    """The run in ``folder``, its best controller so far, and that one's configuration.

    Args:
        threshold: of an acceptance head. Default: the paper's.

    Raises:
        InputError: no epoch is finished, or a file is missing or damaged.
    """
    options = CONTROLLERS.get(run_kind(folder), SpecDecTrainingOptions)
    run, module = read_run(folder, options), module_of(options)
    best, dataset = _read_best(run), run.dataset
    pair = PairFingerprint(**{"draft": None, **dataset["fingerprint"]})
    sampling, *others = (SamplingParams(**each) for each in samplings(dataset))
    known = dataset | vars(run.settings) | best
    known |= {
        "arms": named_apart([Arm(**arm) for arm in dataset.get("arms", ())]),
        "threshold": PAPER_THRESHOLD if threshold is None else threshold,
        "threshold_source": "paper default" if threshold is None else "given at export",
        "provenance": Provenance(
            dataset["target"], dataset.get("draft"), pair, sampling, tuple(others), trained_prompts(run)
        ),
        "datasets": fingerprints(dataset),
        "metrics": {name: value for name, value in best["metrics"].items() if math.isfinite(value)},
    }
    names = {entry.name: module.renamed.get(entry.name, entry.name) for entry in fields(module.config)}
    config = module.config(**{name: known[other] for name, other in names.items() if other in known})
    return run, module.exported(config, best), config


def trained_prompts(run: Run[Any]) -> tuple[str, ...]:
    """Digests of the prompts of a run's training data, without those held out; none where the data is not there."""
    settings = run.settings
    found: set[str] = set()
    for folder in getattr(settings, "folders", ()):
        try:
            kind = read_manifest(folder)["kind"]
            rows = read_dataset(folder, LABELLED[kind]) if kind in LABELLED else []
        except InputError:  # moved or changed since
            return ()
        fraction = settings.validation_fraction
        found |= {prompt_digest(row.prompt) for row in rows if not is_validation(row.prompt_id, fraction)}
    return tuple(sorted(found))


def _read_best(run: Run[Any]) -> dict[str, Any]:
    if not run.best.exists():
        raise InputError(f"{run.folder}: no epoch is finished yet; continue with 'specpilot train … --resume'")
    return read_checkpoint(run.best)
