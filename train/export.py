"""``specpilot export``: writes the best checkpoint of a run as a controller that the decoder loads."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..common.errors import InputError
from ..common.wandb_project import find_project
from ..controllers.acceptance.training import DataSummary, Origin
from ..controllers.arms import shorten_names
from ..controllers.checkpoints.checkpoint import load_controller, save_controller
from ..controllers.checkpoints.config import CONFIG, ControllerConfig
from ..controllers.checkpoints.provenance import Provenance, prompt_digest
from ..controllers.registry import CONTROLLERS, USER_MODULES, controller_module
from ..controllers.training_options import CopyTrainingOptions, RouterTrainingOptions, TrainingOptions
from ..data_gen.dataset import Manifest, read_manifest
from ..data_gen.kinds import LABELLED, read_dataset
from .best_epoch import BestCheckpoint, read_best
from .datasets import fingerprints, is_validation
from .draft import KIND as DRAFT
from .draft import export_draft
from .options import DraftTrainingOptions
from .run_folder import Run, read_run, run_kind

# Options of trainings with a command of their own. The options of a predictor are in its module.
OPTIONS: dict[str, type[TrainingOptions]] = {"copies": CopyTrainingOptions, "router": RouterTrainingOptions}


def export(
    run: str | Path,
    output: str | Path,
    *,
    threshold: float | None = None,
    predictor: str | None = None,
    whole_vocabulary: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write the best weights of a training run as a controller checkpoint or a draft, and return its folder.

    Args:
        run: folder of ``specpilot train``; an unfinished run has its best epoch so far. Or a controller checkpoint,
            which is rewritten in the current format.
        output: checkpoint folder to create.
        threshold: probability of a rejection above which an acceptance head ends a draft. By default 0.7, as in the
            paper.
        predictor: the predictor of your own package that was trained, as ``package.module:Config``.
        whole_vocabulary: give a draft that was trained with a part of the vocabulary the target's whole output
            projection, so that transformers and vLLM load it.
        overwrite: replace an existing checkpoint.

    Raises:
        InputError: ``run`` is not a run or has no finished epoch, ``output`` exists, the threshold is not in [0, 1], or
            the run has no draft with rows of the target's output projection.
    """
    run, output = Path(run), Path(output)
    is_controller = (run / CONFIG).is_file()
    if whole_vocabulary and (is_controller or run_kind(run) != DRAFT):
        raise InputError("whole_vocabulary=True: a controller has no vocabulary; leave it out")
    if is_controller:
        if threshold is not None:
            raise InputError(f"threshold={threshold}: an exported controller keeps its threshold; leave it out")
        controller = load_controller(run)
        return save_controller(output, controller.head, controller.config, overwrite=overwrite)
    if run_kind(run) == DRAFT:
        if threshold is not None:
            raise InputError(f"threshold={threshold}: a {DRAFT} has no threshold; leave it out")
        trained = read_run(run, DraftTrainingOptions)
        best = _read_best(trained).head
        export_draft(trained, best, output, whole_vocabulary=whole_vocabulary, overwrite=overwrite)
    else:
        trained, head, config = best_controller(run, threshold, predictor)
        save_controller(output, head, config, overwrite=overwrite)
    if trained.settings.wandb is not None:
        try:
            _add_to_wandb(trained, output)
        except Exception as error:  # an error of the package, the network or the service; the checkpoint is written
            warnings.warn(f"{output}: could not be added to the run of Weights & Biases ({error})", stacklevel=2)
    return output


def _add_to_wandb(run: Run[Any], output: Path) -> None:
    """Add the checkpoint in ``output`` to the run of Weights & Biases, as an artifact."""
    import wandb

    project = find_project(str(run.settings.wandb))
    started = wandb.init(
        **project.options, name=run.folder.name, id=run.id, resume="allow", dir=run.folder,
    )  # fmt: skip
    artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", run.folder.name), type="model")
    artifact.add_dir(str(output))
    started.log_artifact(artifact)
    started.finish()


def best_controller(
    folder: str | Path, threshold: float | None = None, predictor: str | None = None
) -> tuple[Run[Any], nn.Module, ControllerConfig]:
    """Return the run in ``folder``, its best controller so far, and the controller's configuration.

    Args:
        threshold, predictor: as for :func:`export`.

    Raises:
        InputError: no epoch is finished, a file is missing or damaged, or the predictor is not part of specpilot and
            not named.
    """
    name = run_kind(folder) if predictor is None else predictor
    if name not in CONTROLLERS and name not in USER_MODULES and predictor is None:
        raise InputError(
            f"{folder}: was trained with {name!r}, a predictor of your own package; name it with --predictor {name}"
        )
    kind = controller_module(name)
    options = OPTIONS.get(name) or kind.TrainingOptions
    run = read_run(folder, options, {} if predictor is None else {"predictor": predictor})
    checkpoint, dataset = _read_best(run), run.dataset
    best = checkpoint.epoch
    summary = DataSummary(
        (dataset.hidden_size or 0) if best.hidden_size is None else best.hidden_size,
        0.5 if best.mean is None else best.mean,
        best.examples or 0,
        shorten_names(dataset.arms),
    )
    metrics = {name: value for name, value in best.metrics.items() if math.isfinite(value)}
    config = kind.to_checkpoint(run.settings, summary, origin_of(dataset, metrics, trained_prompts(run)))
    if threshold is not None:
        config = config.with_threshold(threshold)
    head = config.module()
    head.load_state_dict(checkpoint.head)
    if best.scale is not None:
        head.absorb(torch.tensor(best.scale))
    return run, head, config


def origin_of(dataset: Manifest, metrics: dict[str, float], prompts: tuple[str, ...] = ()) -> Origin:
    """Return the origin of a checkpoint that is trained on data with the manifest ``dataset``.

    Args:
        metrics: metrics on held-out prompts.
        prompts: digests of the training prompts.
    """
    further = tuple(dataset.other_sampling)
    provenance = Provenance(
        dataset.target, dataset.draft, dataset.pair, dataset.sampling, further, prompts, dataset.verifier
    )
    return Origin(provenance, fingerprints(dataset), metrics)


def trained_prompts(run: Run[Any]) -> tuple[str, ...]:
    """Return digests of the training prompts of a run, without held-out ones; empty if the data is missing."""
    settings = run.settings
    digests: set[str] = set()
    for folder in getattr(settings, "folders", ()):
        try:
            kind = read_manifest(folder).kind
            rows = read_dataset(folder, LABELLED[kind]) if kind in LABELLED else []
        except InputError:  # the data was moved or changed
            return ()
        fraction = settings.validation_fraction
        digests |= {prompt_digest(row.prompt) for row in rows if not is_validation(row.prompt_id, fraction)}
    return tuple(sorted(digests))


def _read_best(run: Run[Any]) -> BestCheckpoint:
    """Return the best checkpoint of a run; raises InputError if no epoch is finished."""
    if not run.best.exists():
        raise InputError(f"{run.folder}: no epoch is finished yet; continue with 'specpilot train … --resume'")
    return read_best(run.best)
