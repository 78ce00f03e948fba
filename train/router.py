"""``specpilot train router``: trains a policy on a dataset of rewards and writes a run folder."""

from __future__ import annotations

from pathlib import Path

from ..data_gen.kinds import RouterRow
from .datasets import joint_manifest, router_rows
from .fitting import Training, TrainingResult, fit, train_run
from .options import RouterTrainingOptions
from .router_module import RouterDataModule, RouterModule, table_of


def train_router(settings: RouterTrainingOptions, output: str | Path, *, resume: bool = False) -> TrainingResult:
    """Train a router.

    Arguments and errors are those of :func:`~.acceptance.train_acceptance`.

    Raises:
        InputError: also if a reward is not finite.
    """
    manifest = joint_manifest(settings.folders, RouterRow.kind)
    return train_run(output, settings, manifest, lambda: _load(settings), resume=resume)


def _load(settings: RouterTrainingOptions) -> Training:
    dataset = router_rows(settings.folders)
    data = RouterDataModule(table_of(dataset, settings), settings)
    module = RouterModule(settings, data)
    print(
        f"{len(data.training.ids)} training queries, {len(data.validation.ids)} validation queries, "
        f"{data.total_steps} steps, {len(dataset.arms)} arms"
    )
    # The scale is part of the policy.
    return lambda run: {name: value for name, value in fit(run, module, data).items() if name != "scale"}
