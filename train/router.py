"""``specpilot train router``: trains a policy on a dataset of rewards and writes a run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from ..controllers.router import RouterPolicy
from ..data_gen.kinds import RouterRow
from .callbacks import RefuseDivergence
from .datasets import joint_manifest, router_rows
from .fitting import TrainingResult, ended_by_signals, fit, quiet_lightning, train_run
from .options import RouterTrainingOptions
from .router_data import RouterDataModule, Table, table_of
from .router_module import RouterModule
from .run_folder import Run


def train_router(settings: RouterTrainingOptions, output: Path, *, resume: bool = False) -> TrainingResult:
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


def fit_policy(table: Table, settings: RouterTrainingOptions) -> RouterPolicy:
    """The policy after the last epoch over ``table``, for embeddings that are not scaled; writes no files.

    Raises:
        InputError: as :func:`train_router`.
    """
    data = RouterDataModule(table, settings)
    module = RouterModule(settings, data, [str(arm) for arm in range(table.rewards.shape[1])])
    with quiet_lightning(), ended_by_signals():
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=settings.epochs, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, limit_val_batches=0,
            callbacks=[RefuseDivergence()],
        )  # fmt: skip
        trainer.fit(module, datamodule=data)
    policy = module.head
    policy.absorb(data.scale)
    return policy.eval().requires_grad_(False)
