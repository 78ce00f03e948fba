"""The base of every controller's ``config.json``: kind, sizes, provenance and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ...common.errors import InputError
from ..acceptance.calibration import Calibration
from .provenance import Provenance

if TYPE_CHECKING:
    from ..acceptance.predictor import TrainedPredictor
    from ..length.base import LengthController
    from ..length.cost_model import CostModel

CONFIG = "config.json"
SCHEMA_VERSION = 4  # for all kinds
WIDEST = 65536  # largest layer width; protects against a damaged config.json


# Names of metrics in files of earlier versions, and the names that they have now.
RENAMED = {
    "kl_undone": "kl_unweighted",
    "brier_undone": "brier_unweighted",
    "ece_undone": "ece_unweighted",
    "regret_sampled": "expected_regret",
}


def with_current_names(metrics: Any, prefix: str = "") -> Any:
    """``metrics`` of a file by their current names, after a ``prefix``; anything but a dictionary as it is."""
    if not isinstance(metrics, dict):
        return metrics
    renamed = {f"{prefix}{old}": f"{prefix}{new}" for old, new in RENAMED.items()}
    return {renamed.get(name, name): value for name, value in metrics.items()}


@dataclass(frozen=True, kw_only=True)
class ControllerConfig(ABC):
    """Base of every controller's configuration. A kind adds its sizes and settings, and makes its network.

    A controller of drafts overrides ``predictor``, or ``length_controller`` if it predicts no acceptance.

    Attributes:
        provenance: the models and sampling parameters of the training.
        datasets: SHA-256 of each training dataset.
        metrics: metrics on held-out prompts.
        calibration: maps logits to calibrated probabilities (see :mod:`..acceptance.calibration`); None for none.
        kind: name of the kind of controller.
        title: title in the model card.
        summary: description in the model card.
        given_as: the argument that takes it: length, copies or router.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    given_as: ClassVar[str] = "length"

    provenance: Provenance
    datasets: list[str]
    metrics: dict[str, float] = field(default_factory=dict)
    calibration: Calibration | None = None

    def __post_init__(self) -> None:  # noqa: B027 - not abstract: few kinds have checks
        """Refuse invalid values. A subclass with checks of its own calls this method first."""

    @abstractmethod
    def module(self) -> nn.Module:
        """A new module of the configured sizes."""

    @abstractmethod
    def rows(self) -> dict[str, str]:
        """Rows of the model card's table for this kind."""

    @property
    def own_threshold(self) -> float | None:
        """The threshold that drafting stops by if no costs are given; None if the controller needs costs."""
        return None

    def with_threshold(self, threshold: float) -> Self:
        """The same configuration with another ``own_threshold``.

        Raises:
            InputError: the kind has no threshold, or it is not in [0, 1].
        """
        raise InputError(f"threshold={threshold}: a controller of kind {self.kind!r} has none; leave it out")

    def predictor(
        self, head: nn.Module, embedding: Tensor, device: torch.device, *, calibrated: bool
    ) -> TrainedPredictor:
        """The acceptance predictor with the weights of ``head``.

        Args:
            embedding: (V, d) the draft's output embedding.
            device: device of the draft's states.
            calibrated: whether to predict probabilities, as stopping by cost needs: by the checkpoint's calibration, or
                with the weights of the loss undone. Otherwise it is the head's output, which its own threshold is for.

        Raises:
            InputError: the controller predicts no acceptance, or reads states of another size than the draft's.
        """
        instead = "name one that does" if self.given_as == "length" else f"give it as {self.given_as}"
        raise InputError(f"is of kind {self.kind!r}, which predicts no acceptance of a draft model's tokens; {instead}")

    def length_controller(self, head: nn.Module, cost: CostModel | None) -> LengthController | None:
        """The length controller of this kind that uses ``cost``.

        None, the default, if a rule for predictors applies: rate-optimal stopping, or a threshold.

        Raises:
            InputError: it needs costs, and ``cost`` is None.
        """
        return None

    def usage(self) -> str:
        """Arguments of ``SpeculativeDecoder.from_pretrained`` for this controller."""
        cost = ', cost="cost.json"' if self.own_threshold is None else ""
        return f'target="{self.provenance.target}", draft="{self.provenance.draft}", length="path/to/this/folder"{cost}'

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "schema_version": SCHEMA_VERSION, **asdict(self)}


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise InputError unless ``low`` ≤ ``value`` ≤ ``high``."""
    if not low <= value <= high:
        raise InputError(f"{name}={value}: must be between {low} and {high}")
