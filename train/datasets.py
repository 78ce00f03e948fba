"""Training data from one or several dataset folders of the same models and sampling parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ..common.errors import InputError
from ..data_gen.dataset import mean_acceptance, read_manifest
from ..data_gen.kinds import RouterRow
from ..data_gen.router_dataset import RouterDataset, read_router_dataset

T = TypeVar("T")
SAME = ("kind", "fingerprint", "sampling", "arms", "hidden_size")  # must agree between datasets trained on together


def router_rows(folders: Sequence[str]) -> RouterDataset:
    """Router datasets concatenated, with the times measured for the first."""
    parts = [read_router_dataset(folder) for folder in folders]
    return replace(
        parts[0], manifest=joint_manifest(folders, RouterRow.kind), rows=[row for part in parts for row in part.rows]
    )


def fingerprints(manifest: dict[str, Any]) -> list[str]:
    """SHA-256 of each dataset of a manifest, which may be a joint one."""
    return list(manifest.get("datasets", [manifest["dataset_fingerprint"]]))


def samplings(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The sampling parameters of a manifest's datasets, each once."""
    return [manifest["sampling"], *manifest.get("other_sampling", [])]


def check_same(folders: Sequence[str], manifests: Sequence[dict[str, Any]], names: Sequence[str] = SAME) -> None:
    """Raise InputError for a manifest that differs from the first in one of ``names``."""
    for folder, manifest in zip(folders, manifests, strict=True):
        for name in names:
            if manifest.get(name) != manifests[0].get(name):
                raise InputError(f"{folder}: {name} differs from that of {folders[0]}; give datasets that agree in it")


def joint_manifest(folders: Sequence[str], kind: str) -> dict[str, Any]:
    """The joint manifest of complete datasets of one kind: the first with what all of them have.

    Raises:
        InputError: one is of another kind, incomplete, or of other models, arms or sampling parameters.
    """
    manifests = [read_manifest(folder, kind, complete=True) for folder in folders]
    check_same(folders, manifests)
    first = manifests[0]
    if len(manifests) == 1:
        return first
    shards = [shard for manifest in manifests for shard in manifest["shards"]]
    return first | {
        "shards": shards,
        "prompts": [manifest.get("prompts") for manifest in manifests],
        "mean_acceptance": mean_acceptance(shards),
        "dataset_fingerprint": joint_fingerprint(manifests),
        "datasets": [manifest["dataset_fingerprint"] for manifest in manifests],
    }


def joint_sampling(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fields of :func:`samplings` for datasets that may differ in sampling parameters."""
    first = manifests[0]["sampling"]
    others = [manifest["sampling"] for manifest in manifests if manifest["sampling"] != first]
    found = [one for i, one in enumerate(others) if one not in others[:i]]
    return {"sampling": first, **({"other_sampling": found} if found else {})}


def joint_fingerprint(manifests: Sequence[dict[str, Any]]) -> str:
    """One fingerprint of all datasets; that of a single dataset is its own."""
    fingerprints = [str(manifest["dataset_fingerprint"]) for manifest in manifests]
    return fingerprints[0] if len(fingerprints) == 1 else hashlib.sha256("\0".join(fingerprints).encode()).hexdigest()


def is_validation(prompt_id: str, fraction: float) -> bool:
    """Whether a prompt is held out, decided by the hash of its id, so that adding data does not change the split."""
    return int.from_bytes(hashlib.sha256(prompt_id.encode()).digest()[:8]) < fraction * 2**64


def split(things: Iterable[T], ids: Iterable[str], fraction: float) -> tuple[list[T], list[T]]:
    """``things`` to train on and those held out for validation, both in order; ``ids`` are those of their prompts."""
    parts: tuple[list[T], list[T]] = [], []
    for thing, name in zip(things, ids, strict=True):
        parts[is_validation(name, fraction)].append(thing)
    return parts


def require_both(training: int, validation: int, fraction: float, noun: str) -> None:
    """Raise InputError if there is nothing to train on or nothing to validate with."""
    if not (training and validation):
        raise InputError(
            f"validation_fraction={fraction}: gives {training} {noun} to training and {validation} to validation; each "
            "needs at least one: use more data or another fraction"
        )
