"""``specpilot train acceptance``: trains an acceptance predictor on features, and writes a run folder."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from ..common.errors import InputError, counted
from ..controllers.acceptance.training import Batch, DataSummary, Examples
from ..controllers.length.cost_model import CostModel
from ..controllers.registry import controller_module
from ..controllers.training_options import PredictorTrainingOptions
from ..data_gen.dataset import FeatureSettings, Manifest, new_manifest, read_manifest
from ..data_gen.feature_shards import KIND, TRAIN, VALIDATION, FeatureDataset, Part
from .data_module import ResumableData
from .datasets import feature_identity
from .export import origin_of
from .features import make_features
from .fitting import Training, TrainingResult, fit, train_run
from .options import feature_options
from .predictor_module import PredictorModule
from .run_folder import FEATURES

P = TypeVar("P", bound=PredictorTrainingOptions)


def train_acceptance(settings: PredictorTrainingOptions, output: str | Path, *, resume: bool = False) -> TrainingResult:
    """Train an acceptance predictor. The class of ``settings`` determines its kind.

    Args:
        settings: the ``TrainingOptions`` of a predictor.
        output: run folder to create. A complete run is not changed.
        resume: continue the unfinished run in ``output``, or begin a run if there is none. The result is the same as
            that of an uninterrupted run, on a single CPU bit for bit.

    Raises:
        InputError: the data is incomplete, malformed or of other models; or ``output`` contains a run with other
            settings, or an unfinished run while ``resume`` is false; or training diverges.
    """
    settings, dataset = resolve(settings)
    return train_run(output, settings, dataset, lambda: _load(settings, dataset, Path(output)), resume=resume)


def resolve(settings: P) -> tuple[P, Manifest]:
    """Return ``settings`` with every value resolved, and the manifest of the data of the features.

    Raises:
        InputError: the data is missing, incomplete or of another kind; features were made under other settings.
    """
    if settings.cost is not None:
        CostModel.load(settings.cost)  # reports an invalid file before features are made
    folder = settings.folders[0]
    if len(settings.folders) == 1 and read_manifest(folder).kind == KIND:
        manifest = FeatureDataset(Path(folder)).manifest
        _require_settings(settings, manifest.features)
    else:
        manifest = new_manifest(feature_identity(feature_options(settings)))
    names = {entry.name for entry in fields(settings)} - {"seed", "device"}
    stored: dict[str, Any] = {name: value for name, value in manifest.features.by_name().items() if name in names}
    settings = replace(settings, **stored, target=manifest.target, draft=manifest.draft)
    dataset = replace(manifest, shards=[], predictor=settings.predictor, dataset_fingerprint=manifest.data_fingerprint)
    return settings, dataset


def _require_settings(settings: PredictorTrainingOptions, features: FeatureSettings) -> None:
    """Raise InputError if the stored features have other settings than the training."""
    (folder,) = settings.folders
    if features.context != settings.context:
        raise InputError(
            f"{folder}: contains features of another predictor; make features with 'specpilot data features "
            f"--predictor {settings.predictor}'"
        )
    stored = features.by_name()
    for entry in fields(settings):
        name, value = entry.name, getattr(settings, entry.name)
        if name in stored and name not in ("seed", "device") and value not in (entry.default, stored[name]):
            raise InputError(
                f"{name}={value}: the features in {folder} were made with {stored[name]}; leave it out, or make new "
                "features"
            )


def _load(settings: PredictorTrainingOptions, dataset: Manifest, output: Path) -> Training:
    """Return the training on stored features, or on features that are made in the run folder ``output``."""
    if dataset.complete:
        folder = Path(settings.folders[0])
    elif settings.num_nodes > 1:
        raise InputError(
            f"num_nodes={settings.num_nodes}: {settings.folders[0]} has no features; make features once, with "
            f"'specpilot data features --predictor {settings.predictor}', and train on them"
        )
    else:
        folder = make_features(feature_options(settings), output / FEATURES)
        gc.collect()  # frees target and draft before training
    features = FeatureDataset(folder)
    features.check()
    data = AcceptanceDataModule(features, settings)
    # The mean acceptance of the data replaces that of a validation, which checkpoints have.
    origin = origin_of(dataset, {"mean_acceptance": data.summary.mean_acceptance})
    module = PredictorModule(settings.predictor, settings, data, features, origin)
    noun = "rollout" if settings.by_text else "drafted token"
    print(
        f"{counted(data.train_loader.rows, noun)} to train on, "
        f"{counted(data.total_steps, 'step')}; {sum(p.numel() for p in module.head.parameters()):,} parameters"
    )
    return lambda run: fit(run, module, data)


class AcceptanceDataModule(ResumableData[Part, Batch]):
    """Makes training and validation batches of a feature dataset. A batch is split over the processes.

    Args:
        dataset: the feature dataset.
        settings: options of the training.
    """

    settings: PredictorTrainingOptions

    def __init__(self, dataset: FeatureDataset, settings: PredictorTrainingOptions) -> None:
        self.dataset = dataset
        parts = [dataset.part(f"{TRAIN}{i}") for i in range(dataset.training_parts)]
        super().__init__(settings, parts, dataset.part(VALIDATION))

    @property
    def summary(self) -> DataSummary:
        """The summary of the training data."""
        manifest = self.dataset.manifest
        assert manifest.hidden_size is not None
        assert manifest.mean_acceptance is not None, "a complete feature dataset has training parts"
        return DataSummary(manifest.hidden_size, manifest.mean_acceptance, sum(self.training.rows))

    def training_parts(self) -> Iterator[Examples]:
        """Return the examples of the first epoch, shard by shard."""
        return (self._examples(shard.tensors) for shard in self.training.shards)

    def sizes(self, examples: Part) -> list[int]:
        """Return the number of examples of each shard: texts if the predictor trains by text, else rows."""
        return examples.texts if self.settings.by_text else examples.rows

    def batch(self, examples: Part, rows: Tensor, epoch: int | None) -> Batch:
        """Return this process's share of a batch."""
        share, first, total = self.share(rows)
        columns = examples.gather(examples.rows_of_texts(share) if self.settings.by_text else share)
        kind, batch = controller_module(self.settings.predictor), self._examples(columns)
        return Batch(kind.inputs(batch, self.settings), batch.labels, first, total)

    def _examples(self, columns: dict[str, Tensor]) -> Examples:
        """Return the examples in the stored ``columns``. Unknown columns of other versions are ignored."""
        names = {entry.name for entry in fields(Examples)}
        batch_columns = {name: column for name, column in columns.items() if name in names}
        return Examples(**batch_columns, embedding=self.dataset.embedding)
