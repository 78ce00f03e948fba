"""``specpilot.make_dataset`` and ``specpilot.train``.

The class of the options names the kind of dataset or controller. Both functions call the function of that kind, which
can also be called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from rich.console import Console

from ..common.errors import InputError
from ..controllers.training_options import CopyTrainingOptions, PredictorTrainingOptions, RouterTrainingOptions
from ..data_gen.acceptance import make_acceptance_data, make_answers
from ..data_gen.on_policy import make_on_policy_data
from ..data_gen.options import (
    ONE_PROCESS,
    OWN_RESPONSES,
    AcceptanceDataOptions,
    AnswersDataOptions,
    OnPolicyDataOptions,
    ResponseOptions,
    RouterDataOptions,
    WorkerOptions,
)
from ..data_gen.router import make_router_data
from .acceptance import train_acceptance
from .copies import train_copies
from .draft import train_draft
from .features import make_features
from .fitting import TrainingResult
from .options import DraftTrainingOptions, FeatureDataOptions
from .router import train_router

R = TypeVar("R")

DataOptions: TypeAlias = (
    AcceptanceDataOptions | AnswersDataOptions | OnPolicyDataOptions | RouterDataOptions | FeatureDataOptions
)
ControllerOptions: TypeAlias = (
    PredictorTrainingOptions | CopyTrainingOptions | RouterTrainingOptions | DraftTrainingOptions
)


def make_dataset(
    options: DataOptions,
    output: str | Path,
    *,
    workers: WorkerOptions = ONE_PROCESS,
    responses: ResponseOptions = OWN_RESPONSES,
    console: Console | None = None,
) -> Path:
    """Make or complete the dataset ``output``, as ``specpilot data …`` does, and return its folder.

    Args:
        options: ``AcceptanceDataOptions``, ``AnswersDataOptions``, ``OnPolicyDataOptions``, ``RouterDataOptions`` or
            ``FeatureDataOptions``. The class names the kind of dataset.
        output: folder of the dataset. An unfinished dataset is continued, and a complete dataset is not changed.
        workers: workers on a Ray cluster; not for on-policy data. By default, this process.
        responses: engine that generates the texts of acceptance data. By default, the target itself.
        console: shows the progress. By default, standard error.

    Raises:
        InputError: a value is out of range; a model or prompt is missing or does not fit; ``output`` contains another
            dataset; or this kind of dataset does not support ``workers`` or ``responses``.
    """
    if isinstance(options, OnPolicyDataOptions):
        _refuse("workers", workers != ONE_PROCESS, "the decoder's rounds are logged by this process")
        _refuse("responses", responses != OWN_RESPONSES, "the decoder generates the texts")
        return make_on_policy_data(options, output, console=console)
    if isinstance(options, AcceptanceDataOptions):
        return make_acceptance_data(options, output, workers=workers, responses=responses, console=console)
    _refuse("responses", responses != OWN_RESPONSES, "only acceptance data is made of texts of another engine")
    makers: Mapping[type, Callable[..., Path]] = {
        AnswersDataOptions: make_answers, RouterDataOptions: make_router_data, FeatureDataOptions: make_features,
    }  # fmt: skip
    make = _of_class(
        options,
        makers,
        "AcceptanceDataOptions, AnswersDataOptions, OnPolicyDataOptions, RouterDataOptions or FeatureDataOptions",
    )
    return make(options, output, workers=workers, console=console)


def train(options: ControllerOptions, output: str | Path, *, resume: bool = False) -> TrainingResult:
    """Train a controller or a draft in the run folder ``output``, as ``specpilot train …`` does.

    Args:
        options: the options of a predictor (``LagFreeTrainingOptions``, ``SpecDecTrainingOptions``,
            ``FeatureModelTrainingOptions``, or those of your own predictor), ``CopyTrainingOptions``,
            ``RouterTrainingOptions`` or ``DraftTrainingOptions``. The class names the kind of controller.
        output: run folder to create. A complete run is not changed.
        resume: continue the unfinished run in ``output``, or begin a run if there is none. The result is the same as
            that of an uninterrupted run, on a single CPU bit for bit.

    Raises:
        InputError: a value is out of range, the data is missing or does not fit, or ``output`` contains another run.
    """
    trainers: Mapping[type, Callable[..., TrainingResult]] = {
        PredictorTrainingOptions: train_acceptance, CopyTrainingOptions: train_copies,
        RouterTrainingOptions: train_router, DraftTrainingOptions: train_draft,
    }  # fmt: skip
    trainer = _of_class(
        options,
        trainers,
        "LagFreeTrainingOptions, SpecDecTrainingOptions, FeatureModelTrainingOptions, CopyTrainingOptions, "
        "RouterTrainingOptions or DraftTrainingOptions",
    )
    return trainer(options, output, resume=resume)


def _refuse(name: str, is_used: bool, reason: str) -> None:
    """Raise InputError if the argument ``name`` is used though it has no effect."""
    if is_used:
        raise InputError(f"{name}: would be ignored, because {reason}; leave it out")


def _of_class(options: object, functions: Mapping[type, Callable[..., R]], names: str) -> Callable[..., R]:
    """Return the function for the class of ``options``; an InputError has the ``names`` of all classes."""
    for kind, function in functions.items():
        if isinstance(options, kind):
            return function
    raise InputError(f"options: has the type {type(options).__name__}; pass specpilot's {names}")
