"""A router dataset on disk: every arm's output for each prompt, its similarity to the target's, and its acceptance.

Measured times are in a separate file, since shards and manifest must be the same bytes for killed and resumed runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..common.errors import InputError
from ..common.files import replacing
from ..common.json_file import blaming, build, read_object
from ..controllers.arms import Arm
from ..controllers.length.cost_model import CostModel
from .dataset import ParquetWriter, read_manifest, read_shards

TIMES = "times.json"


@dataclass(frozen=True)
class RouterRow:
    """One prompt (Huang et al. 2024, §2.3); the lists over arms are in the manifest's order.

    Attributes:
        domain: group of the prompt in reports.
        embedding: (d,) the target's embedding of the prompt.
        greedy: the target's greedy output, o_e.
        sampled: the target's output under the sampling parameters.
        outputs: each arm's greedy output, o_j; for ``autoregressive`` the sampled output, since the greedy one is o_e.
            Empty if a token of the prompt is outside the draft's vocabulary.
        rouge: ROUGE-L F1 of each arm's output against the greedy one, f(o_e, o_j).
        overlap: for each arm, Σ_v min(p_i(v), q_i(v)) at each token i of ``sampled``: the acceptance probability of a
            drafted token; 0 after a token outside the draft's vocabulary. Empty for arms without drafts.
    """

    prompt_id: str
    domain: str
    prompt: str
    prompt_ids: list[int]
    embedding: list[float]
    greedy: list[int]
    sampled: list[int]
    outputs: list[list[int]]
    rouge: list[float]
    overlap: list[list[float]]


class RouterWriter(ParquetWriter[RouterRow]):
    """Writes a router dataset."""

    schema = pa.schema(
        [
            ("prompt_id", pa.string()),
            ("domain", pa.string()),
            ("prompt", pa.string()),
            ("prompt_ids", pa.list_(pa.int32())),
            ("embedding", pa.list_(pa.float32())),
            ("greedy", pa.list_(pa.int32())),
            ("sampled", pa.list_(pa.int32())),
            ("outputs", pa.list_(pa.list_(pa.int32()))),
            ("rouge", pa.list_(pa.float32())),
            ("overlap", pa.list_(pa.list_(pa.float32()))),
        ]
    )

    def sums(self, rows: list[RouterRow]) -> dict[str, Any]:
        return {"tokens": sum(len(row.greedy) + len(row.sampled) + sum(map(len, row.outputs)) for row in rows)}


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
    manifest = router_manifest(folder)
    rows = [RouterRow(**row) for row in read_shards(folder)]
    arms = tuple(Arm(**arm) for arm in manifest["arms"])
    times = Times.load(folder)
    for row in rows:
        if not len(row.outputs) == len(row.rouge) == len(row.overlap) == len(arms) == len(times.arms):
            raise InputError(f"prompt {row.prompt_id!r}: must have {len(arms)} arms; generate the data again")
    return RouterDataset(manifest, arms, rows, times)


def router_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a complete router dataset; raises InputError for anything else."""
    manifest = read_manifest(folder)
    if manifest["kind"] != "router":
        raise InputError(f"{folder}: a dataset of kind {manifest['kind']!r}; make one with 'specpilot data router'")
    if not manifest["complete"]:
        raise InputError(f"{folder}: the dataset is incomplete; run 'specpilot data router' again to finish it")
    return manifest
