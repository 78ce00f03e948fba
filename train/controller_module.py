"""Base class of the Lightning modules of all controllers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ..common.errors import InputError
from ..controllers.checkpoints.config import ControllerConfig
from .options import LoggedTrainingOptions


class ControllerModule(pl.LightningModule, ABC):
    """A controller in training.

    Attributes:
        head: the network whose weights are exported.
        criterion: name of the validation metric that selects the best epoch.
        validation: metrics of the last validation.
        learning_rate: learning rate of the last step.
    """

    head: nn.Module
    criterion: str
    validation: dict[str, float]

    def __init__(self, fitting: LoggedTrainingOptions) -> None:
        super().__init__()
        self.fitting = fitting
        self.learning_rate = fitting.lr
        self.validation = {}

    @abstractmethod
    def score(self) -> float:
        """Score of the last validation; the epoch of the highest score is kept."""

    def findings(self) -> dict[str, Any]:
        """Further results of the validation, stored with the best weights."""
        return {}

    def setup(self, stage: str) -> None:
        if self.fitting.threads is not None:  # in each of several processes
            torch.set_num_threads(self.fitting.threads)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.learning_rate = optimizer.param_groups[0]["lr"]

    def require_finite(self, what: str, values: Tensor) -> None:
        """Raise an InputError that names the learning rate if one of ``values`` is NaN or infinite."""
        if not bool(torch.isfinite(values).all()):
            raise InputError(
                f"lr={self.fitting.lr}: training diverged, {what} not finite after step {self.global_step}; use a "
                "smaller lr, or a smaller weight decay or loss weight"
            )

    def total(self, value: Tensor) -> Tensor:
        """The sum of ``value`` over all processes, on its device."""
        if self.trainer.world_size == 1:
            return value
        reduced = self.trainer.strategy.reduce(value.detach().clone().to(self.device), reduce_op="sum")
        assert isinstance(reduced, Tensor)
        return reduced.to(value.device)

    def dropout(self, rate: float, width: int, *, first: int, count: int, total: int) -> Tensor | None:
        """(count, width) factors of the inputs of this process's examples, drawn by seed, step and example alone.

        The batch of all processes has ``total`` examples, of which this one's begin with ``first``: one device or
        several, an example has the same factors. None without dropout.
        """
        if not rate:
            return None
        generator = torch.Generator(self.device)
        generator.manual_seed(((self.fitting.seed << 32) + self.global_step) % 2**63)
        kept = torch.rand((total, width), generator=generator, device=self.device) >= rate
        return kept[first : first + count] / (1 - rate)

    def share(self, local_sum: Tensor, count: Tensor) -> Tensor:
        """A loss whose gradient, averaged over processes as DDP does, is that of Σ ``local_sum`` / Σ ``count``."""
        return local_sum * self.trainer.world_size / self.total(count).clamp(min=1e-12)


class ExportedModule(ControllerModule):
    """A controller whose checkpoint is its weights and a configuration.

    Attributes:
        options: class of the training's settings.
    """

    options: ClassVar[type[LoggedTrainingOptions]]

    @classmethod
    @abstractmethod
    def exported(
        cls, settings: Any, dataset: dict[str, Any], best: dict[str, Any], common: dict[str, Any]
    ) -> tuple[nn.Module, ControllerConfig]:
        """The controller to export, and its configuration.

        Args:
            settings: settings of the run, of class ``options``.
            dataset: manifest of the run's data.
            best: the best weights, ``head``, with their metrics and :meth:`findings`.
            common: fields that every configuration has.
        """
