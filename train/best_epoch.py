"""The best epoch of a training, in ``best.ckpt`` with its weights, and in ``result.json`` of a complete run."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ..common.errors import InputError
from ..common.files import check_no_pointer
from ..common.json_file import build, naming_file
from ..common.record import SparseRecord
from ..controllers.acceptance.metrics import Bin
from ..controllers.checkpoints.config import with_current_names

REMEDY = "remove its folder and train again with --resume"
DAMAGED = f"truncated or damaged; {REMEDY}"


@dataclass(frozen=True, kw_only=True)
class BestEpoch(SparseRecord):
    """The best epoch of a training.

    Attributes:
        epoch: number of the epoch, from 1.
        step: number of steps of the optimizer until the end of the epoch.
        metrics: metrics of the validation; NaN for undefined metrics.
        reliability: reliability table of a predictor.
        mean, examples, hidden_size: mean acceptance, number of training examples, and size of the states of a
            predictor's data.
        scale: divisors of a router's embeddings, which export folds into the policy's first layer.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    reliability: list[Bin] = field(default_factory=list)
    mean: float | None = None
    examples: int | None = None
    hidden_size: int | None = None
    scale: list[float] | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "") -> Self:
        """Return the record of ``values``, in which metrics may have names of older versions."""
        values = {**values, "metrics": with_current_names(values["metrics"])} if "metrics" in values else values
        return build(cls, values, name, ignore_unknown=True, finite=False)


@dataclass(frozen=True)
class BestCheckpoint:
    """The content of ``best.ckpt``.

    Attributes:
        head: parameters and buffers of the trained network by name.
        epoch: the epoch of these weights.
    """

    head: dict[str, Tensor]
    epoch: BestEpoch

    def to_dict(self) -> dict[str, Any]:
        """Return tensors, numbers and text, which load with ``weights_only=True``."""
        return {"head": self.head, **self.epoch.to_dict()}


def read_best(file: Path) -> BestCheckpoint:
    """Return the content of ``best.ckpt``.

    Raises:
        InputError: the file is missing or damaged.
    """
    content = _read(file)
    head = content.pop("head", None)
    if not isinstance(head, dict):
        raise InputError(f"{file}: {DAMAGED}")
    with naming_file(file, REMEDY):
        return BestCheckpoint(head, BestEpoch.from_dict(content))


def read_step(file: Path) -> int:
    """Return the number of steps of the optimizer before ``last.ckpt`` was saved.

    Raises:
        InputError: the file is missing or damaged.
    """
    content = _read(file)
    with naming_file(file, REMEDY):
        return build(int, content.get("global_step"), "global_step")


def _read(file: Path) -> dict[str, Any]:
    """Return the dictionary in a checkpoint, after a comparison of its check sums."""
    check_no_pointer(file)
    try:
        with zipfile.ZipFile(file) as archive:  # PyTorch does not compare check sums
            damaged = archive.testzip() is not None
        content: object = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # the file may contain anything
        raise InputError(f"{file}: {DAMAGED}") from error
    if damaged or not isinstance(content, dict):
        raise InputError(f"{file}: {DAMAGED}")
    return content
