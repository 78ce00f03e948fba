"""The base of every controller's ``config.json``: kind, sizes, provenance and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from torch import nn

from ...common.errors import InputError
from ..acceptance.calibration import parse_calibration
from .provenance import Provenance

CONFIG = "config.json"
SCHEMA_VERSION = 4  # for all kinds
WIDEST = 65536  # largest layer width; protects against a damaged config.json

KINDS: dict[str, type[ControllerConfig]] = {}  # of every class that names its kind, once its file is imported


@dataclass(frozen=True, kw_only=True)
class ControllerConfig(ABC):
    """Base of every controller's configuration. A kind adds its sizes and settings, and builds its module.

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
    calibration: dict[str, Any] | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        if self.calibration is not None:
            parse_calibration(self.calibration)

    @abstractmethod
    def module(self) -> nn.Module:
        """A new module of the configured sizes."""

    @abstractmethod
    def rows(self) -> dict[str, str]:
        """Rows of the model card's table for this kind."""

    def usage(self) -> str:
        """Arguments of ``SpeculativeDecoder.from_pretrained`` for this controller."""
        return f'target="{self.provenance.target}", draft="{self.provenance.draft}", length="path/to/this/folder"'

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "schema_version": SCHEMA_VERSION, **asdict(self)}


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise InputError unless ``low`` ≤ ``value`` ≤ ``high``."""
    if not low <= value <= high:
        raise InputError(f"{name}={value}: must be between {low} and {high}")
