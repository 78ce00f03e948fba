"""Callbacks for progress, metrics, checkpoints and the end of a run. A killed and resumed run ends with the same files.

Lightning's CSV logger deletes the rows of a resumed run, and its checkpoint callback saves a step before that step's
metrics are logged. Here a checkpoint contains the metric rows up to its step, and files are replaced atomically.
"""

from __future__ import annotations

import csv
import io
import math
import sys
import time
import warnings
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint, EarlyStopping
from pytorch_lightning.loggers import WandbLogger

from ..common.console import progress_bar, stderr_console
from ..common.files import replacing
from ..controllers.acceptance.metrics import Bin
from ..controllers.checkpoints.config import with_current_names
from .best_epoch import BestCheckpoint, BestEpoch
from .modules import LOSSES, ControllerModule, controller, monitor, require_finite, score, total

NOTED_EVERY = 0.5  # seconds between two notes, because reading the loss waits for an accelerator


class Progress(Callback):
    """Shows steps, loss and last validation of the first process, and prints a line for each epoch."""

    def __init__(self) -> None:
        self._shown = ExitStack()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            bar = progress_bar(
                stderr_console(), "training steps", int(trainer.estimated_stepping_batches), trainer.global_step
            )
            self._advance, self._noted = self._shown.enter_context(bar), -math.inf

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.is_global_zero:
            return
        if time.monotonic() - self._noted < NOTED_EVERY:
            self._advance()
            return
        self._noted = time.monotonic()
        self._advance(self._note(trainer))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            print(self._note(trainer), flush=True)

    def _note(self, trainer: pl.Trainer) -> str:
        """Return the line with the epoch and the metrics."""
        values = [f"{name} {value:.4g}" for name, value in trainer.progress_bar_metrics.items()]
        return ", ".join([f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}", *values])

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._shown.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._shown.close()


class RunLog(Callback):
    """Writes ``metrics.csv``, and the same values to the run's loggers.

    A row has the loss, every ``interval`` steps and at the last step of an epoch, or the validation metrics of an
    epoch. Epochs count from 1.

    Args:
        file: the file ``metrics.csv``.
        interval: number of steps between two rows with the loss.
    """

    COLUMNS = ("step", "epoch", "loss", "lr")

    def __init__(self, file: Path, interval: int) -> None:
        self.file, self.interval = file, interval
        self.rows: list[dict[str, float]] = []
        self.learning_rate = math.nan  # learning rate of the last step

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = [with_current_names(row, "val_") for row in state_dict["rows"]]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write(trainer)  # drops rows after the checkpoint from which training resumes

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self.learning_rate = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.interval == 0 or batch_idx + 1 == trainer.num_training_batches:
            loss = float(total(pl_module, outputs["loss"])) / trainer.world_size
            self._add(trainer, {"loss": loss, "lr": self.learning_rate})

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        validation = {f"val_{name}": value for name, value in controller(pl_module).validation.items()}
        self._add(trainer, validation)
        self._write(trainer)

    def _add(self, trainer: pl.Trainer, values: dict[str, float]) -> None:
        """Add a row, and log its values."""
        values = {"epoch": trainer.current_epoch + 1, **values}
        self.rows.append({"step": trainer.global_step, **values})
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)

    def _write(self, trainer: pl.Trainer) -> None:
        """Write all rows to the file, in the first process."""
        if not trainer.is_global_zero:
            return
        extra = dict.fromkeys(name for row in self.rows for name in row if name not in self.COLUMNS)
        with replacing(self.file) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*self.COLUMNS, *extra])
            writer.writeheader()
            writer.writerows(self.rows)


class RunCheckpoints(Checkpoint):
    """Saves ``last.ckpt`` and ``best.ckpt``.

    ``last.ckpt`` is written every ``interval`` steps and after each epoch, ``best.ckpt`` after each epoch whose score
    is the highest so far. Both files only contain tensors, numbers and text, and load with ``weights_only=True``.

    Args:
        folder: folder of the files.
        interval: number of steps between two checkpoints.
    """

    def __init__(self, folder: Path, interval: int) -> None:
        self.last, self.best, self.interval = folder / "last.ckpt", folder / "best.ckpt", interval
        self.highest = -math.inf

    def state_dict(self) -> dict[str, Any]:
        return {"highest": self.highest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.highest = state_dict["highest"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # The last step of an epoch is skipped, because the checkpoint at the epoch's end includes the validation.
        if trainer.global_step % self.interval == 0 and batch_idx + 1 < trainer.num_training_batches:
            self._save_last(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        module = controller(pl_module)
        if score(module) > self.highest:
            self.highest = score(module)
            best = module.add_findings(
                BestEpoch(epoch=trainer.current_epoch + 1, step=trainer.global_step, metrics=module.validation)
            )
            if trainer.is_global_zero:
                self._log_table(trainer, best.reliability)
                content = io.BytesIO()  # on a full disk torch.save raises other errors than OSError
                torch.save(BestCheckpoint(module.head.state_dict(), best).to_dict(), content)
                with replacing(self.best) as temporary:
                    temporary.write_bytes(content.getvalue())
        self._save_last(trainer)

    def _log_table(self, trainer: pl.Trainer, rows: list[Bin]) -> None:
        """Log the reliability table to Weights & Biases."""
        for logger in trainer.loggers:
            if rows and isinstance(logger, WandbLogger):
                columns, data = [*vars(rows[0])], [[*vars(row).values()] for row in rows]
                logger.log_table("reliability", columns, data, step=trainer.global_step)

    def _save_last(self, trainer: pl.Trainer) -> None:
        """Save ``last.ckpt``. All processes take part, and the first one writes."""
        with replacing(self.last) if trainer.is_global_zero else nullcontext(self.last) as file:
            trainer.save_checkpoint(file, weights_only=False)


class StopEarly(EarlyStopping):
    """Lightning's early stopping, by the metric that selects the best epoch.

    A run that was killed after its last epoch stops when it is resumed.

    Args:
        module: the Lightning module, which names the metric.
        patience: number of epochs without an improvement after which the training stops; None never stops early.
    """

    def __init__(self, module: ControllerModule, patience: int | None) -> None:
        mode = "min" if module.criterion in LOSSES else "max"
        super().__init__(monitor(module), patience=patience or sys.maxsize, mode=mode)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict | {"patience": self.patience})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop = self.wait_count >= self.patience

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero and self.wait_count >= self.patience:
            print(f"stopped early: {self.monitor} has not improved (patience: {self.wait_count})")


class RefuseDivergence(Callback):
    """Checks that the loss of every step and the weights before validation and saving are finite.

    Raises:
        InputError: a loss or a weight is NaN or infinite.
    """

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        require_finite(pl_module, "the loss is", outputs["loss"])

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for parameter in pl_module.parameters():
            require_finite(pl_module, "weights are", parameter)


class LongerSchedule(Callback):
    """Sets the learning rates of a run that continues with more epochs.

    They are the learning rates of a run that had the larger number of epochs from its start.
    """

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        for state in checkpoint["lr_schedulers"]:
            for name in ("total_steps", "_schedule_phases"):  # attributes of OneCycleLR
                state.pop(name, None)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the learning rate of the first step after a checkpoint by the schedule with all epochs."""
        for configuration in trainer.lr_scheduler_configs:
            schedule = configuration.scheduler
            assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
            with warnings.catch_warnings(action="ignore"):  # a warning that get_lr is called outside of a step
                for group, rate in zip(schedule.optimizer.param_groups, schedule.get_lr(), strict=True):
                    group["lr"] = rate


class Threads(Callback):
    """Sets the number of CPU threads in each process; None keeps the number."""

    def __init__(self, count: int | None) -> None:
        self.count = count

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.count is not None:
            torch.set_num_threads(self.count)
