"""A router dataset in memory, with the times measured when it was made.

Measured times are in a separate file, since shards and manifest must be the same bytes for killed and resumed runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import InputError
from ..common.files import replacing
from ..common.json_file import blaming, build, read_object
from ..controllers.arms import Arm
from ..controllers.length.cost_model import CostModel
from .dataset import read_manifest
from .kinds import RouterRow, read_dataset

TIMES = "times.json"


@dataclass(frozen=True)
class Times:
    """Times measured when the data was made: seconds per token of each arm, and the target's cost of verification."""

    arms: list[float]
    verify: CostModel

    def save(self, folder: Path, machine: dict[str, Any]) -> None:
        document = {"seconds_per_token": self.arms, "cost": self.verify.as_dict(), "machine": machine}
        with replacing(folder / TIMES) as temporary:
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Times:
        """Read the times of a dataset; raise InputError if they are missing or damaged."""
        file, again = Path(folder) / TIMES, "run 'specpilot data router' again to measure them"
        document = read_object(file, again)
        with blaming(file, again):
            arms = build(list[float], document.get("seconds_per_token"), "seconds_per_token")
            return cls(arms, build(CostModel, document.get("cost"), "cost"))


@dataclass(frozen=True)
class RouterDataset:
    """A router dataset in memory."""

    manifest: dict[str, Any]
    arms: tuple[Arm, ...]
    rows: list[RouterRow]
    times: Times


def read_router_dataset(folder: str | Path) -> RouterDataset:
    """Read and validate a complete router dataset.

    Raises:
        InputError: the folder is no router dataset, or it is incomplete or damaged.
    """
    manifest = read_manifest(folder, RouterRow.kind, complete=True)
    rows = read_dataset(folder, RouterRow)
    arms = tuple(Arm(**arm) for arm in manifest["arms"])
    times = Times.load(folder)
    for row in rows:
        if not len(row.outputs) == len(row.rouge) == len(row.overlap) == len(arms) == len(times.arms):
            raise InputError(f"prompt {row.prompt_id!r}: must have {len(arms)} arms; generate the data again")
    return RouterDataset(manifest, arms, rows, times)
