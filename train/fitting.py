"""Lightning around a run: trainer, callbacks, loggers, threads; the same for every controller."""

from __future__ import annotations

import errno
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.loggers import Logger

from ..controllers.errors import InputError
from .callbacks import RunCheckpoints, RunLog
from .controller_module import ControllerModule
from .run_folder import METRICS, Run, S


def fit(run: Run[S], module: ControllerModule, data: pl.LightningDataModule, device: torch.device) -> None:
    """Train to the end, from the run's last checkpoint if there is one."""
    settings = run.settings
    accelerator, devices = lightning_device(device)
    with quiet_lightning():
        trainer = pl.Trainer(
            accelerator=accelerator,
            devices=devices,
            max_epochs=settings.epochs,
            logger=loggers(run),
            callbacks=[
                RunLog(run.folder / METRICS, settings.log_every),
                RunCheckpoints(run.last.parent, settings.checkpoint_every),
                RichProgressBar(),
            ],
            default_root_dir=run.folder,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            log_every_n_steps=settings.log_every,
        )
        trainer.fit(module, datamodule=data, ckpt_path=run.last if run.last.exists() else None, weights_only=True)
    if settings.wandb is not None:
        import wandb

        wandb.finish()  # or the next training of this process would be logged to the same run


def lightning_device(device: torch.device) -> tuple[str, list[int] | int]:
    """``accelerator`` and ``devices`` of a trainer on ``device``; ``cuda`` without a number is the first GPU."""
    if device.type == "cuda":
        return "gpu", [device.index or 0]
    return ("mps" if device.type == "mps" else "cpu"), 1


@contextmanager
def writable(output: Path) -> Iterator[None]:
    """A disk that is full or closed to us is bad input."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise InputError(
            f"{output}: cannot be written ({error.strerror}); free space or choose another place"
        ) from error


def loggers(run: Run[S]) -> list[Logger]:
    if run.settings.wandb is None:
        return []
    from pytorch_lightning.loggers import WandbLogger

    offline = not os.environ.get("WANDB_API_KEY")
    return [
        WandbLogger(
            project=run.settings.wandb,
            name=run.folder.name,
            id=run.id,
            resume="allow",
            offline=offline,
            save_dir=run.folder,
            config=vars(run.settings),
        )
    ]


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without Lightning's remarks about accelerators and stopping; its warnings stay, save one about its own code."""
    log = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)")
            yield
    finally:
        log.setLevel(before)
