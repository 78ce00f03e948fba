"""Common parts of the Lightning modules of predictors, routers and drafts: the callbacks' interface, and functions.

Each module is a direct subclass of ``LightningModule``. :mod:`.callbacks` has the parts that are the same in all
trainings: metrics.csv, checkpoints, and the learning rates of a training that continues with more epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from ..common.errors import InputError
from ..controllers.training_options import TrainingOptions
from .best_epoch import BestEpoch

H = TypeVar("H", bound=nn.Module)
LOSSES = ("kl", "regret")  # criteria whose lowest value is the best


class ControllerModule(Protocol):
    """The interface of Lightning modules for the callbacks.

    Attributes:
        head: the network whose weights are exported.
        settings: options of the training.
        criterion: name of the validation metric that selects the best epoch.
        validation: metrics of the last validation.
    """

    head: nn.Module
    settings: Any
    criterion: str
    validation: dict[str, float]

    def add_findings(self, best: BestEpoch) -> BestEpoch:
        """Return ``best``, the epoch of the last validation, with further results that are stored with the weights."""


def controller(module: pl.LightningModule) -> ControllerModule:
    """Return ``module``, a Lightning module of this package, with its interface for callbacks."""
    return cast(ControllerModule, module)


def monitor(module: ControllerModule) -> str:
    """Return the criterion's name in metrics.csv and in the progress of a training."""
    return f"val_{module.criterion}"


def score(module: ControllerModule) -> float:
    """Return the score of the last validation. The epoch with the highest score is kept."""
    value = module.validation[module.criterion]
    return -value if module.criterion in LOSSES else value


def seeded(seed: int, make: Callable[[], H]) -> H:
    """Return the result of ``make`` with random weights that depend only on ``seed``.

    The global generator is not changed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def optimizers(
    module: pl.LightningModule, steps: int, *, fitted: bool = False, **adam: Any
) -> OptimizerLRSchedulerConfig:
    """Return the result of ``configure_optimizers``: AdamW for the trained parameters of the head, and its schedule.

    Args:
        module: the Lightning module.
        steps: number of steps of the whole training.
        fitted: whether the head is already fitted, so that the learning rate is 0.
        adam: further settings of AdamW, and ``schedule``, which makes the schedule of an optimizer; by default one
            cycle.
    """
    settings: TrainingOptions = controller(module).settings
    make_schedule = adam.pop("schedule", None)
    trained = [parameter for parameter in controller(module).head.parameters() if parameter.requires_grad]
    lr = 0.0 if fitted else settings.lr
    # AdamW without weight decay is Adam.
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=settings.weight_decay, **adam)
    if make_schedule is None:
        schedule: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    else:
        schedule = make_schedule(optimizer)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def training_loss(module: pl.LightningModule, local_sum: Tensor, count: Tensor) -> Tensor:
    """Log and return the loss of a step: Σ ``local_sum`` / Σ ``count`` over all processes.

    DDP's average of the gradients over processes is the gradient of this quotient.
    """
    loss = local_sum * module.trainer.world_size / total(module, count).clamp(min=1e-12)
    module.log("loss", loss, prog_bar=True, logger=False, batch_size=1)
    return loss


def finish_validation(module: pl.LightningModule, metrics: dict[str, float]) -> None:
    """Store ``metrics`` as the module's ``validation``, and log the criterion's mean over all processes."""
    controller_module = controller(module)
    controller_module.validation = metrics
    module.log(
        monitor(controller_module), metrics[controller_module.criterion], prog_bar=True, logger=False, sync_dist=True
    )


def total(module: pl.LightningModule, value: Tensor) -> Tensor:
    """Return the sum of ``value`` over all processes, on the value's device."""
    if module.trainer.world_size == 1:
        return value
    reduced = module.trainer.strategy.reduce(value.detach().clone().to(module.device), reduce_op="sum")
    assert isinstance(reduced, Tensor)
    return reduced.to(value.device)


def gathered(module: pl.LightningModule, values: Tensor) -> Tensor:
    """Return the ``values`` (…, n) of all processes, one after another."""
    parts: list[Any] = [values] * module.trainer.world_size
    if len(parts) > 1:
        torch.distributed.all_gather_object(parts, values)
    return torch.cat(parts, -1)


def require_finite(module: pl.LightningModule, subject: str, values: Tensor) -> None:
    """Raise an InputError with the learning rate if one of ``values`` is NaN or infinite.

    Args:
        module: the Lightning module.
        subject: name of the values with "is" or "are".
        values: the values.
    """
    if not bool(torch.isfinite(values).all()):
        raise InputError(
            f"lr={controller(module).settings.lr}: training diverged, {subject} not finite after step "
            f"{module.global_step}; use a smaller lr, or a smaller weight decay or loss weight"
        )


def cosine(optimizer: torch.optim.Optimizer, steps: int, warm_up: int = 0) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a schedule of half a cosine from the learning rate to 0, after ``warm_up`` steps."""
    from transformers import get_cosine_schedule_with_warmup

    return get_cosine_schedule_with_warmup(optimizer, warm_up, steps)  # type: ignore[no-any-return]
