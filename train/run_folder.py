"""The folder of a training run.

It contains ``run.yaml`` (resolved settings), ``dataset.json`` (the data's manifest), ``command.txt``, ``env.json``,
``metrics.csv``, ``checkpoints/``, and ``result.json`` after the run is complete.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

import yaml

from ..common.errors import InputError
from ..common.files import LOCK, RUN, lacking, replacing
from ..common.json_file import build, naming_file, parse_yaml, read_object
from ..common.machine import machine, versions
from ..common.wandb_project import WandbProject
from ..controllers.training_options import TrainingOptions
from ..data_gen.dataset import Manifest, parse_manifest
from .best_epoch import BestEpoch

VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")  # names of torch and Lightning


def is_first_node(settings: TrainingOptions) -> bool:
    """Return whether this machine is the first of ``settings.num_nodes``, by NODE_RANK.

    Raises:
        InputError: there are several machines, and a variable is missing or wrong.
    """
    if settings.num_nodes == 1:
        return True
    for name in VARIABLES:
        if not os.environ.get(name):
            raise InputError(
                f"num_nodes={settings.num_nodes}: {name} is not set; set {', '.join(VARIABLES)} on every machine: the "
                "machine's number from 0, and the address and port of machine 0"
            )
    rank = os.environ["NODE_RANK"]
    if not rank.isdecimal() or int(rank) >= settings.num_nodes:
        raise InputError(f"NODE_RANK={rank}: must be a number from 0 to {settings.num_nodes - 1}")
    return int(rank) == 0


SETTINGS, DATASET, COMMAND, ENVIRONMENT, RESULT = RUN, "dataset.json", "command.txt", "env.json", "result.json"
METRICS, CHECKPOINTS, FEATURES, STATES = "metrics.csv", "checkpoints", "features", "states"
WANDB, TENSORBOARD = "wandb", "tensorboard"  # folders of the loggers
LIMITS = ("epochs", "patience")  # settings that only decide when a training ends; larger ones continue it


TRAIN_AGAIN = "train again, into another folder"

S = TypeVar("S", bound=TrainingOptions)


@dataclass(frozen=True)
class Run(Generic[S]):
    """An opened run folder.

    Attributes:
        folder: the folder.
        settings: options of the training.
        dataset: manifest of the data.
        id: id of the run for loggers.
        writes: whether this process writes to the folder; of several machines only the first one does.
        wandb: the project of Weights & Biases that gets the logs; None without one.
    """

    folder: Path
    settings: S
    dataset: Manifest
    id: str
    writes: bool = True
    wandb: WandbProject | None = None

    @property
    def best(self) -> Path:
        """The checkpoint of the best epoch."""
        return self.folder / CHECKPOINTS / "best.ckpt"

    @property
    def last(self) -> Path:
        """The last checkpoint."""
        return self.folder / CHECKPOINTS / "last.ckpt"

    def result(self) -> BestEpoch | None:
        """Return the best epoch of a complete run; None for an unfinished run.

        Raises:
            InputError: the file is damaged.
        """
        file = self.folder / RESULT
        if not file.exists():
            return None
        values = read_object(file, TRAIN_AGAIN)
        with naming_file(file, TRAIN_AGAIN):
            return BestEpoch.from_dict(values)

    def log_command(self) -> None:
        """Add the command line to ``command.txt``."""
        if not self.writes:
            return
        with open(self.folder / COMMAND, "a", encoding="utf-8") as file:
            file.write(shlex.join(sys.argv) + "\n")

    def discard(self) -> None:
        """Remove the run's files except the features, which another run may use."""
        if not self.writes:
            return
        for name in (SETTINGS, DATASET, COMMAND, ENVIRONMENT, METRICS):
            (self.folder / name).unlink(missing_ok=True)
        for name in (CHECKPOINTS, STATES, WANDB, TENSORBOARD):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def complete(self, best: BestEpoch) -> None:
        """Mark the run as complete."""
        if self.writes:
            _write(self.folder / RESULT, json.dumps(best.to_dict(), indent=2))


def run_kind(folder: str | Path) -> str:
    """Return the kind of the run in ``folder``: specdec (the default), lag-free, features, copies, draft or router.

    Raises:
        InputError: a file of the run is damaged.
    """
    file = Path(folder) / DATASET
    dataset = read_object(file, TRAIN_AGAIN) if file.is_file() else {}
    return "router" if dataset.get("kind") == "router" else str(dataset.get("predictor", "specdec"))


def read_run(folder: str | Path, kind: type[S], changed: Mapping[str, object] = MappingProxyType({})) -> Run[S]:
    """Return the run in ``folder``, with settings of class ``kind``.

    Args:
        folder: the folder.
        kind: class of the settings.
        changed: settings that replace those of the run.

    Raises:
        InputError: the folder has no run, or a file of the run is damaged.
    """
    folder = Path(folder)
    for name in (SETTINGS, DATASET, ENVIRONMENT):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder}: no training run, {lacking(folder, name)}; name the output folder of a training"
            )
    dataset = parse_manifest(folder / DATASET, TRAIN_AGAIN)
    values = read_object(folder / SETTINGS, TRAIN_AGAIN, parse_yaml)
    with naming_file(folder / SETTINGS, TRAIN_AGAIN):
        settings = build(kind, {**values, **changed})
    environment = read_object(folder / ENVIRONMENT, TRAIN_AGAIN)
    with naming_file(folder / ENVIRONMENT, TRAIN_AGAIN):
        run_id = build(str, environment.get("run_id"), "run_id")
    return Run(folder, settings, dataset, run_id)


def find_run(folder: Path, settings: S, dataset: Manifest, *, resume: bool) -> Run[S] | None:
    """Return the run to continue in ``folder``; None if a new run can begin.

    Raises:
        InputError: the folder contains other files, a run with other settings or data, or an unfinished run while
            ``resume`` is false.
    """
    first = is_first_node(settings)
    if not (folder / SETTINGS).exists():
        if not first:
            return None
        # run.yaml is written last, so a folder with only the files below has no run.
        run_files = {SETTINGS, DATASET, ENVIRONMENT, CHECKPOINTS, FEATURES, STATES, LOCK}
        if foreign := [path.name for path in folder.glob("*") if path.name.removesuffix(".tmp") not in run_files]:
            raise InputError(
                f"{folder}: is not empty (it contains {foreign[0]!r}) and not a run; choose another folder"
            )
        return None
    run = read_run(folder, type(settings))
    _require_same(run, settings, dataset, resume)
    if run.result() is None and first and not resume:
        raise InputError(f"{folder}: holds an unfinished run; pass --resume to continue, or choose another folder")
    return replace(run, writes=first)


def begin_run(folder: Path, settings: S, dataset: Manifest) -> Run[S]:
    """Write settings, manifest and environment of a new run to ``folder`` on the first machine, and return the run."""
    if not is_first_node(settings):
        return Run(folder, settings, dataset, id="", writes=False)
    shutil.rmtree(folder / STATES, ignore_errors=True)  # the states of a discarded run
    (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    environment = {"run_id": uuid.uuid4().hex, "versions": versions(), "machine": machine().to_dict()}
    _write(folder / ENVIRONMENT, json.dumps(environment, indent=2))
    _write(folder / DATASET, json.dumps(dataset.to_dict(), indent=2))
    _write_settings(folder, settings)
    return read_run(folder, type(settings))


def larger(name: str, settings: TrainingOptions, previous: TrainingOptions) -> bool:
    """Return true if the limit ``name`` is larger in ``settings`` than in ``previous``; None is the largest."""
    value, old_value = (
        math.inf if (limit := getattr(options, name)) is None else limit for options in (settings, previous)
    )
    return bool(value > old_value)


def grows(settings: TrainingOptions, changed: TrainingOptions) -> bool:
    """Return true if the settings ``changed`` extend a run with ``settings``, because one of their limits is larger."""
    return any(larger(name, changed, settings) for name in LIMITS)


def grown(run: Run[S], settings: S) -> Run[S]:
    """Return ``run`` as an unfinished run with ``settings``, whose larger limits extend it.

    The result of a finished run is removed, and ``run.yaml`` gets the new settings.
    """
    if run.writes:
        (run.folder / RESULT).unlink(
            missing_ok=True
        )  # removed first, so that a run that is interrupted here grows again
        _write_settings(run.folder, settings)
    return replace(run, settings=settings)


def _write_settings(folder: Path, settings: TrainingOptions) -> None:
    """Write ``run.yaml``."""
    _write(folder / SETTINGS, yaml.safe_dump(asdict(settings), sort_keys=False, allow_unicode=True))


def _require_same(run: Run[S], settings: S, dataset: Manifest, resume: bool) -> None:
    """Raise InputError if ``run`` has other data or settings; larger limits are allowed with ``resume``."""
    if run.dataset.dataset_fingerprint != dataset.dataset_fingerprint:
        raise InputError(
            f"{run.folder}: belongs to a run on other data; name its data with --data, or choose another --output"
        )
    stored, current = asdict(run.settings), asdict(settings)
    longer = [name for name in LIMITS if larger(name, settings, run.settings)]
    changed = [
        f"{name} was {stored[name]} and is {current[name]}"
        for name in current
        if name not in ("data", *longer) and current[name] != stored[name]  # the same data may have been moved
    ]
    if changed:
        raise InputError(
            f"{run.folder}: belongs to a run with other settings: {'; '.join(changed)}; repeat those settings, or "
            "choose another --output"
        )
    if longer and not resume:
        name = longer[0]
        raise InputError(f"{run.folder}: contains a run with {name}={stored[name]}; pass --resume to train it further")


def _write(path: Path, text: str) -> None:
    """Write ``text`` and a line feed to a file that appears by atomic rename."""
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
