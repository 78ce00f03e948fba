"""Base class of the Lightning modules of all controllers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, TypeVar

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.errors import InputError
from ..controllers.checkpoints.config import ControllerConfig
from .metrics import Metrics
from .options import TrainingOptions

H = TypeVar("H", bound=nn.Module)
LOSSES = ("kl", "regret")  # criteria of which the least is the best


def seeded(seed: int, make: Callable[[], H]) -> H:
    """What ``make`` makes, with random weights that depend on ``seed`` alone; the global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


class ControllerModule(pl.LightningModule, ABC):
    """A controller in training.

    Attributes:
        head: the network whose weights are exported.
        steps: number of steps of the whole training.
        criterion: name of the validation metric that selects the best epoch.
        adam: further settings of the optimiser.
        validation: metrics of the last validation.
        learning_rate: learning rate of the last step.
        config: class of the checkpoint's configuration; its fields are found by name in the run's settings, data and
            findings. A draft has none: it is a model of its own.
        renamed: the fields that are called otherwise there.
    """

    head: nn.Module
    settings: TrainingOptions
    criterion: str
    adam: ClassVar[dict[str, Any]] = {}
    validation: dict[str, float]
    config: ClassVar[type[ControllerConfig]]
    renamed: ClassVar[dict[str, str]] = {}

    def __init__(self, settings: TrainingOptions, steps: int) -> None:
        super().__init__()
        self.settings, self.steps = settings, steps
        self.learning_rate = settings.lr
        self.validation = {}

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The sum of the losses of this process's examples, and their number or total weight; two scalars."""

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """The metrics of the validation that ended, over all processes."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.share(*self.loss(batch))
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=1)
        return loss

    def on_validation_epoch_end(self) -> None:
        self.validation = self.measure()
        self.log(self.monitor, self.validation[self.criterion], prog_bar=True, logger=False, sync_dist=True)

    @property
    def monitor(self) -> str:
        """The criterion's name in metrics.csv and in the progress of a training."""
        return f"val_{self.criterion}"

    def score(self) -> float:
        """Score of the last validation; the epoch of the highest score is kept."""
        value = self.validation[self.criterion]
        return -value if self.criterion in LOSSES else value

    def configure_optimizers(self) -> Any:
        settings = self.settings
        trained = [parameter for parameter in self.head.parameters() if parameter.requires_grad]
        # AdamW without weight decay is Adam.
        optimizer = torch.optim.AdamW(trained, lr=settings.lr, weight_decay=settings.weight_decay, **self.adam)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.schedule(optimizer), "interval": "step"}}

    def schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """The learning rate by the step."""
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, self.settings.lr, total_steps=self.steps)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A run that is trained further goes on at the learning rates of a run of all its epochs."""
        for state in checkpoint["lr_schedulers"]:
            for name in ("total_steps", "_schedule_phases"):  # of OneCycleLR
                state.pop(name, None)

    def on_train_start(self) -> None:
        """The first step after a checkpoint has the schedule's learning rate, as if it had always had these epochs."""
        schedule = self.lr_schedulers()
        if isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
            with warnings.catch_warnings(action="ignore"):  # that get_lr is called outside of a step
                for group, rate in zip(schedule.optimizer.param_groups, schedule.get_lr(), strict=True):
                    group["lr"] = rate

    def findings(self) -> dict[str, Any]:
        """Further results of the validation, stored with the best weights."""
        return {}

    @classmethod
    def exported(cls, config: ControllerConfig, best: dict[str, Any]) -> nn.Module:
        """The controller to export, with the ``best`` weights."""
        head = config.module()
        head.load_state_dict(best["head"])
        return head

    def setup(self, stage: str) -> None:
        if self.settings.threads is not None:  # in each of several processes
            torch.set_num_threads(self.settings.threads)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.learning_rate = optimizer.param_groups[0]["lr"]

    def require_finite(self, what: str, values: Tensor) -> None:
        """Raise an InputError that names the learning rate if one of ``values`` is NaN or infinite."""
        if not bool(torch.isfinite(values).all()):
            raise InputError(
                f"lr={self.settings.lr}: training diverged, {what} not finite after step {self.global_step}; use a "
                "smaller lr, or a smaller weight decay or loss weight"
            )

    def total(self, value: Tensor) -> Tensor:
        """The sum of ``value`` over all processes, on its device."""
        if self.trainer.world_size == 1:
            return value
        reduced = self.trainer.strategy.reduce(value.detach().clone().to(self.device), reduce_op="sum")
        assert isinstance(reduced, Tensor)
        return reduced.to(value.device)

    def gathered(self, values: Tensor) -> Tensor:
        """(…, n) the ``values`` of all processes, one after another."""
        parts: list[Any] = [values] * self.trainer.world_size
        if len(parts) > 1:
            torch.distributed.all_gather_object(parts, values)
        return torch.cat(parts, -1)

    def share(self, local_sum: Tensor, count: Tensor) -> Tensor:
        """A loss whose gradient, averaged over processes as DDP does, is that of Σ ``local_sum`` / Σ ``count``."""
        return local_sum * self.trainer.world_size / self.total(count).clamp(min=1e-12)


def module_of(settings: TrainingOptions | type[TrainingOptions]) -> type[ControllerModule]:
    """The Lightning module of a controller."""
    file, _, name = settings.module.partition(".")
    found: type[ControllerModule] = getattr(import_module(f".{file}", __package__), name)
    return found


class Batch(NamedTuple):
    """This process's M examples of a batch.

    Attributes:
        inputs: of the head, (M, …) each.
        accept: (M, …) acceptance probabilities.
        first: index of the first example in the batch of all processes.
        total: number of examples in the batch of all processes.
        prior: (M,) the probabilities that are predicted without the head; None if nothing is.
    """

    inputs: Sequence[Tensor]
    accept: Tensor
    first: int
    total: int
    prior: Tensor | None = None


class PredictorModule(ControllerModule):
    """A head that predicts acceptance: binary cross-entropy on soft labels.

    Attributes:
        seen: for each validation batch, (1 + K, n) the labels and the K :meth:`predictions` of its examples.
        found: metrics of each prediction over all validation examples.
        dropout: share of the entries of ``masked``, the last inputs of the head, that are 0 in training.
    """

    seen: list[Tensor]
    found: list[Metrics]
    dropout: float = 0.0
    masked: int = 0

    def logits(self, batch: Batch, *mask: Tensor) -> Tensor:
        """(M,) logits of acceptance."""
        logits: Tensor = self.head(*(inputs.float() for inputs in batch.inputs), *mask)
        return logits.float()

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, accept = self.labelled(self.logits(batch, *self.mask(batch)), batch)
        losses = F.binary_cross_entropy_with_logits(logits, accept, reduction="sum")
        return losses, losses.new_tensor(len(accept))

    def labelled(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits of a batch that have labels, and these, (n,) each."""
        return logits, batch.accept

    def mask(self, batch: Batch) -> tuple[Tensor, ...]:
        """(M, masked) factors: one device or several, an example has the same. None at all without dropout."""
        if not self.dropout:
            return ()
        generator = torch.Generator(self.device)
        generator.manual_seed(((self.settings.seed << 32) + self.global_step) % 2**63)
        drawn = torch.rand((batch.total, self.masked), generator=generator, device=self.device)
        kept = drawn[batch.first : batch.first + len(batch.accept)] >= self.dropout
        return (kept / (1 - self.dropout),)

    def predictions(self, batch: Batch) -> tuple[Tensor, ...]:
        """Logits (M,) to compute metrics of."""
        return (self.logits(batch),)

    def on_validation_epoch_start(self) -> None:
        self.seen = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        pairs = [self.labelled(logits, batch) for logits in self.predictions(batch)]
        rows = torch.stack([pairs[0][1], *(logits for logits, _ in pairs)])
        self.require_finite("predictions are", rows)
        self.seen.append(rows.cpu())

    def measure(self) -> dict[str, float]:
        labels, *predictions = self.gathered(torch.cat(self.seen, -1))
        self.seen = []
        self.found = [Metrics(logits, labels) for logits in predictions]
        return self.metrics()

    def metrics(self) -> dict[str, float]:
        """Those of the validation that are reported."""
        return self.found[0].compute()

    def findings(self) -> dict[str, Any]:
        """The reliability table of the last validation."""
        return {"reliability": [vars(row) for row in self.found[0].reliability()]}
