"""The Lightning trainer of a run, with callbacks, loggers and threads; the same for every controller."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch.multiprocessing.spawn import ProcessRaisedException

from ..common.errors import InputError, optional_import
from ..common.files import FolderLock
from ..common.wandb_project import find_project, refusing_wandb
from ..data_gen.dataset import Manifest
from ..models.loading.devices import pick_device
from .best_epoch import BestEpoch, read_best, read_step
from .callbacks import LongerSchedule, Progress, RefuseDivergence, RunCheckpoints, RunLog, StopEarly, Threads
from .modules import controller
from .run_folder import METRICS, TENSORBOARD, VARIABLES, Run, S, begin_run, find_run, grown, grows, is_first_node


@dataclass(frozen=True)
class TrainingResult:
    """The result of a complete run.

    Attributes:
        run: the run folder.
        epoch: number of the best epoch, from 1.
        step: number of steps of the optimizer until the end of this epoch.
        metrics: validation metrics of this epoch, by name.
    """

    run: Path
    epoch: int
    step: int
    metrics: dict[str, float]


SIGNALS = (signal.SIGINT, signal.SIGTERM)
PROCESSES: Any = rank_zero_only  # Lightning's number of this process is its attribute `rank`, which has no type
# By these variables srun, torchrun, mpirun and jsrun number and connect the processes that they start.
LAUNCHER_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "SLURM_PROCID", "JSM_NAMESPACE_RANK",
    "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip
Training = Callable[[Run[Any]], BestEpoch]
"""Trains in a run that is begun or continued, and returns its best epoch."""


def train_run(
    output: str | Path, settings: S, dataset: Manifest, load: Callable[[], Training], *, resume: bool
) -> TrainingResult:
    """Train in the run folder ``output``, unless the run is complete and ``settings`` do not extend it.

    Args:
        output: the run folder.
        settings: options of the training. Larger limits, such as more epochs, extend a complete run.
        dataset: manifest of the data.
        load: loads data and models. Before it returns no run is begun, so that one that fails leaves none. A run that
            fails with an InputError before its first checkpoint is removed.

        resume: continue the unfinished run in ``output``, or begin a run if there is none.

    Raises:
        InputError: as :func:`~.run_folder.find_run`, ``load`` and the training; another process is training there; a
            package is missing.
    """
    if settings.tensorboard:
        with optional_import(TENSORBOARD):
            import tensorboard  # noqa: F401
    output = Path(output)
    # The other machines write nothing to the folder.
    lock = FolderLock(output, "is training in it") if is_first_node(settings) else nullcontext()
    with lock, threads(settings.threads):
        previous = find_run(output, settings, dataset, resume=resume)
        further = previous is not None and grows(previous.settings, settings)
        best = None if previous is None else previous.result()
        if best is None or further:
            project = None if settings.wandb is None else find_project(settings.wandb)
            train = load()
            run = replace(previous or begin_run(output, settings, dataset), wandb=project)
            run = grown(run, settings) if further else run
            run.log_command()
            try:
                best = train(run)
            except InputError:
                if not (run.last.exists() or run.best.exists()):
                    run.discard()
                raise
            run.complete(best)
        else:
            print(f"{output}: the run is complete; nothing to do")
    return TrainingResult(output, best.epoch, best.step, best.metrics)


def fit(run: Run[S], module: pl.LightningModule, data: pl.LightningDataModule) -> BestEpoch:
    """Train to the end, from the run's last checkpoint if there is one.

    Returns:
        The best epoch, with the results that the module adds.

    Raises:
        InputError: training diverges, or a checkpoint to continue from is damaged.
    """
    settings = run.settings
    if run.writes:
        run.last.parent.mkdir(exist_ok=True)
    if run.best.exists():
        read_best(run.best)  # reports a damaged file now, not after the training
    first_step = read_step(run.last) if run.last.exists() else 0
    with quiet_lightning(), ended_by_signals(), without_launcher(settings.num_nodes):
        trainer = pl.Trainer(
            **lightning_devices(pick_device(settings.device), settings.devices, settings.num_nodes, settings.strategy),
            plugins=LightningEnvironment(),  # otherwise Lightning searches for SLURM, LSF, MPI and torchrun
            precision=settings.precision,
            max_epochs=settings.epochs,
            logger=loggers(run, first_step),
            callbacks=[
                Threads(settings.threads),
                LongerSchedule(),
                RefuseDivergence(),
                RunLog(run.folder / METRICS, settings.log_every),
                StopEarly(controller(module), settings.patience),
                RunCheckpoints(run.last.parent, settings.checkpoint_every),
                Progress(),
            ],
            default_root_dir=run.folder,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=settings.log_every,
        )
        try:
            with refusing_wandb(settings.wandb):
                trainer.fit(
                    module, datamodule=data, ckpt_path=run.last if run.last.exists() else None, weights_only=True
                )
        except ProcessRaisedException as error:
            raise of_process(error) from error
        finally:
            if settings.wandb is not None:
                import wandb

                wandb.finish()  # otherwise the next training of this process is logged to the same run
    return read_best(run.best).epoch


class TrainerDevices(TypedDict):
    """Keywords of ``pl.Trainer`` for the devices of a training."""

    num_nodes: int
    strategy: str
    accelerator: str
    devices: int | list[int]


def lightning_devices(device: torch.device, count: int, nodes: int, strategy: str) -> TrainerDevices:
    """Return keywords of ``pl.Trainer`` for ``count`` processes on each of ``nodes`` machines.

    ``cuda`` without an index is the first GPU. Processes are spawned, so that training works as a function call.
    """
    chosen = "auto" if strategy == "auto" and count == nodes == 1 else "ddp_spawn"
    if device.type == "cuda":
        first = device.index or 0
        indices = [*range(first, first + count)]
        return {"num_nodes": nodes, "strategy": chosen, "accelerator": "gpu", "devices": indices}
    accelerator = "mps" if device.type == "mps" else "cpu"
    return {"num_nodes": nodes, "strategy": chosen, "accelerator": accelerator, "devices": count}


@contextmanager
def without_launcher(nodes: int) -> Iterator[None]:
    """Hide the variables of a launcher such as srun or torchrun, and restore the environment afterwards.

    This process starts the processes of a training. With these variables, Lightning would assume that the launcher
    started them. It would wait for other processes, or write nothing because this process is not the first one.

    Args:
        nodes: number of machines. Several machines need ``NODE_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT``, which are
            hidden on a single machine.
    """
    hidden = LAUNCHER_VARIABLES if nodes > 1 else (*LAUNCHER_VARIABLES, *VARIABLES)
    environment, rank = {name: os.environ.get(name) for name in (*LAUNCHER_VARIABLES, *VARIABLES)}, PROCESSES.rank
    try:
        for name in hidden:
            os.environ.pop(name, None)
        PROCESSES.rank = 0  # Lightning reads the rank from the environment when it is imported
        yield
    finally:
        PROCESSES.rank = rank
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def of_process(error: ProcessRaisedException) -> Exception:
    """Return the InputError of a spawned process, from the text of its traceback; other errors unchanged."""
    name, _, message = str(error).strip().rpartition("\n")[2].partition(": ")
    return InputError(message) if name.endswith(InputError.__name__) else error


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGINT and SIGTERM end a training like any other command.

    Lightning would end the process with exit code 1 for SIGINT, and with 0 for SIGTERM, as if the training were
    complete. After the first SIGINT it ignores further ones, and it keeps its handlers if it is interrupted during its
    setup. After the block, the previous handlers are restored.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()  # only the main thread may set handlers
    handlers = {number: signal.getsignal(number) for number in SIGNALS} if in_main_thread else {}
    try:
        yield
    except SIGTERMException:
        raise SystemExit(128 + signal.SIGTERM) from None
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None for a handler that Python did not set
                signal.signal(number, handler)


def loggers(run: Run[S], first_step: int) -> list[Logger]:
    """Return the run's loggers besides metrics.csv; logging continues after step ``first_step``."""
    loggers_of_run: list[Logger] = []
    if run.wandb is not None:
        loggers_of_run.append(
            WandbLogger(
                project=run.wandb.project,
                entity=run.wandb.entity,
                name=run.folder.name,
                id=run.id,
                resume="allow",
                offline=run.wandb.offline,
                save_dir=run.folder,
                config=vars(run.settings),
            )
        )
    if run.settings.tensorboard:
        logger = TensorBoardLogger(run.folder, "", TENSORBOARD, default_hp_metric=False, purge_step=first_step + 1)
        logger.log_hyperparams(vars(run.settings))
        loggers_of_run.append(logger)
    return loggers_of_run


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Use ``count`` threads of PyTorch in the block; None keeps the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's info messages and two warnings: about its own code, and about drafts in evaluation mode."""
    log = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)")
            warnings.filterwarnings("ignore", r"Found \d+ module\(s\) in eval mode")
            yield
    finally:
        log.setLevel(before)
