"""What the ``config.json`` of every controller says: kind and sizes, what it was trained for, how well it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from torch import nn

from ..acceptance.calibration import parse_calibration
from ..errors import InputError
from .provenance import Provenance

CONFIG = "config.json"
SCHEMA_VERSION = 4  # of the format of all kinds; 0.1 wrote 1 and 2
WIDEST = 65536  # a damaged config.json must not build a layer that fills the memory


@dataclass(frozen=True, kw_only=True)
class ControllerConfig(ABC):
    """What every controller's configuration has. A kind adds its sizes and settings, and builds its module.

    Attributes:
        provenance: the models and the sampling it was trained for.
        datasets: SHA-256 of each dataset it was trained on.
        metrics: of these weights, on prompts held out.
        calibration: from the logits to calibrated probabilities (see :mod:`..acceptance.calibration`); None where the
            logits are taken as they are.
        kind: the name of the kind of controller.
        title: what the model card calls it.
        summary: what the model card says it does.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]

    provenance: Provenance
    datasets: list[str]
    metrics: dict[str, float] = field(default_factory=dict)
    calibration: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.calibration is not None:
            parse_calibration(self.calibration)

    @abstractmethod
    def module(self) -> nn.Module:
        """A new module of these sizes, for the weights."""

    @abstractmethod
    def rows(self) -> dict[str, str]:
        """What the model card's table tells of this kind."""

    def usage(self) -> str:
        """The arguments with which a decoder uses it."""
        return f'target="{self.provenance.target}", draft="{self.provenance.draft}", length="path/to/this/folder"'

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "schema_version": SCHEMA_VERSION, **asdict(self)}


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises InputError unless ``low`` ≤ ``value`` ≤ ``high``."""
    if not low <= value <= high:
        raise InputError(f"{name}={value}: must be between {low} and {high}")
