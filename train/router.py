"""``specpilot train router``: trains a policy on a dataset of rewards and writes a run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data_gen.kinds import RouterRow
from .datasets import joint_manifest, router_rows
from .fitting import TrainingResult, fit, train_run
from .options import RouterTrainingOptions
from .router_module import RouterDataModule, RouterModule, table_of
from .run_folder import Run


def train_router(settings: RouterTrainingOptions, output: str | Path, *, resume: bool = False) -> TrainingResult:
    """Train a router.

    Args:
        settings: data and settings.
        output: run folder to create. A complete run is not changed.
        resume: continue the unfinished run in ``output``, or begin one if there is none.

    Raises:
        InputError: the data is incomplete or malformed, a reward is not finite; ``output`` holds a run with other
            settings, or an unfinished one and ``resume`` is false; training diverges; the disk is full.
    """
    manifest = joint_manifest(settings.folders, RouterRow.kind)
    return train_run(output, settings, manifest, lambda begin: _train(begin, settings), resume=resume)


def _train(begin: Callable[[], Run[RouterTrainingOptions]], settings: RouterTrainingOptions) -> dict[str, Any]:
    """Load the data, begin or continue the run and train; return the result."""
    dataset = router_rows(settings.folders)
    data = RouterDataModule(table_of(dataset, settings), settings)
    run = begin()
    names = [arm.name for arm in dataset.arms]
    module = RouterModule(settings, data, names)
    print(
        f"{len(data.training.ids)} training queries, {len(data.validation.ids)} validation queries, "
        f"{data.total_steps} steps, {len(names)} arms"
    )
    result = fit(run, module, data)
    del result["scale"]  # it is part of the policy
    return result
