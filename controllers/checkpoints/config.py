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
SCHEMA_VERSION = 4  # the same for all kinds
WIDEST = 65536  # maximum layer width; protects against a damaged config.json


# Names of metrics in files of earlier versions, and their current names.
RENAMED = {
    "kl_undone": "kl_unweighted",
    "brier_undone": "brier_unweighted",
    "ece_undone": "ece_unweighted",
    "regret_sampled": "expected_regret",
}


def with_current_names(metrics: Any, prefix: str = "") -> Any:
    """Return ``metrics`` of a file under their current names; a value that is not a dictionary is returned unchanged.

    Args:
        metrics: the metrics of a file.
        prefix: prefix of the names.
    """
    if not isinstance(metrics, dict):
        return metrics
    renamed = {f"{prefix}{old}": f"{prefix}{new}" for old, new in RENAMED.items()}
    return {renamed.get(name, name): value for name, value in metrics.items()}


@dataclass(frozen=True, kw_only=True)
class ControllerConfig(ABC):
    """Base of every controller's configuration. A kind adds sizes and settings, and a method that returns its network.

    A controller for draft lengths overrides ``predictor``, or ``length_controller`` if it predicts no acceptance.

    Attributes:
        provenance: the models and sampling parameters of the training.
        datasets: SHA-256 of each training dataset.
        metrics: metrics on held-out prompts.
        calibration: maps logits to calibrated probabilities (see :mod:`..acceptance.calibration`); None for none.
        kind: name of the kind of controller.
        title: title in the model card.
        summary: description in the model card.
        option: the option for controllers of this kind: length, copies or router.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    option: ClassVar[str] = "length"

    provenance: Provenance
    datasets: list[str]
    metrics: dict[str, float] = field(default_factory=dict)
    calibration: Calibration | None = None

    def __post_init__(self) -> None:  # noqa: B027 - not abstract: few kinds have checks
        """Check the values. A subclass with further checks calls this method first.

        Raises:
            InputError: a value is invalid.
        """

    @abstractmethod
    def module(self) -> nn.Module:
        """Return a new network with the configured sizes."""

    @abstractmethod
    def rows(self) -> dict[str, str]:
        """Return rows for the table of the model card: values as text by label, such as ``"hidden units"``."""

    @property
    def default_threshold(self) -> float | None:
        """The threshold at which drafting stops without costs; None if a call must pass costs or a threshold."""
        return None

    def with_threshold(self, threshold: float) -> Self:
        """Return the same configuration with another ``default_threshold``.

        Raises:
            InputError: the kind has no threshold, or ``threshold`` is not in [0, 1].
        """
        raise InputError(f"threshold={threshold}: a controller of kind {self.kind!r} has none; leave it out")

    def predictor(
        self, head: nn.Module, embedding: Tensor, device: torch.device, *, calibrated: bool
    ) -> TrainedPredictor:
        """Return the acceptance predictor with the weights of ``head``.

        Args:
            head: the trained network.
            embedding: (V, d) the draft's output embedding.
            device: device of the draft's states.
            calibrated: whether to predict probabilities, which stopping by cost needs: by the checkpoint's calibration,
                or with the weights of the loss undone. Otherwise the prediction is the head's output, for which
                ``default_threshold`` was chosen.

        Raises:
            InputError: the controller predicts no acceptance, or reads states of another size than the draft's.
        """
        remedy = "name one that does" if self.option == "length" else f"give it as {self.option}"
        raise InputError(f"is of kind {self.kind!r}, which predicts no acceptance of a draft model's tokens; {remedy}")

    def length_controller(self, head: nn.Module, cost: CostModel | None) -> LengthController | None:
        """Return the length controller of this kind with the costs ``cost``.

        The default is None: a rule for predictors applies, rate-optimal stopping or a threshold.

        Raises:
            InputError: the controller needs costs, and ``cost`` is None.
        """
        return None

    def usage(self) -> str:
        """Return the arguments of ``SpeculativeDecoder.from_pretrained`` for this controller, for the model card."""
        cost = ', cost="cost.json"' if self.default_threshold is None else ""
        return f'target="{self.provenance.target}", draft="{self.provenance.draft}", length="path/to/this/folder"{cost}'

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "schema_version": SCHEMA_VERSION, **asdict(self)}


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Check that ``low`` ≤ ``value`` ≤ ``high``.

    Raises:
        InputError: ``value`` is outside this interval; the message calls it ``name``.
    """
    if not low <= value <= high:
        raise InputError(f"{name}={value}: must be between {low} and {high}")
