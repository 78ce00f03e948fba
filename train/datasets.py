"""Training data from one or several dataset folders of the same models and sampling parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..common.errors import InputError
from ..data_gen.dataset import read_manifest
from ..data_gen.router_dataset import RouterDataset, read_router_dataset, router_manifest

SAME = ("kind", "fingerprint", "sampling", "arms", "hidden_size")  # must agree between datasets trained on together


def acceptance_manifest(folders: Sequence[str]) -> dict[str, Any]:
    """The joint manifest of complete acceptance datasets.

    Raises:
        InputError: one is of another kind, incomplete, or of other models or sampling parameters.
    """
    return _joint(folders, _acceptance_manifest)


def joint_router_manifest(folders: Sequence[str]) -> dict[str, Any]:
    """The joint manifest of complete router datasets.

    Raises:
        InputError: one is of another kind, incomplete, or of other models, arms or sampling parameters.
    """
    return _joint(folders, router_manifest)


def router_rows(folders: Sequence[str]) -> RouterDataset:
    """Router datasets concatenated, with the times measured for the first."""
    parts = [read_router_dataset(folder) for folder in folders]
    return replace(parts[0], manifest=joint_router_manifest(folders), rows=[row for part in parts for row in part.rows])


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


def _acceptance_manifest(folder: str) -> dict[str, Any]:
    manifest = read_manifest(folder)
    if manifest["kind"] != "acceptance":
        raise InputError(f"{folder}: a dataset of kind {manifest['kind']!r}; make one with 'specpilot data acceptance'")
    if not manifest["complete"]:
        raise InputError(f"{folder}: the dataset is incomplete; run 'specpilot data acceptance' again to finish it")
    return manifest


def _joint(folders: Sequence[str], read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The first manifest with the mean acceptance and the fingerprint of all of them."""
    manifests = [read(folder) for folder in folders]
    check_same(folders, manifests)
    first = manifests[0]
    if len(manifests) == 1:
        return first
    shards = [shard for manifest in manifests for shard in manifest["shards"]]
    tokens, accepted = (sum(shard.get(name, 0) for shard in shards) for name in ("tokens", "acceptance_sum"))
    return first | {
        "shards": shards,
        "prompts": [manifest.get("prompts") for manifest in manifests],
        "mean_acceptance": accepted / max(1, tokens),
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
