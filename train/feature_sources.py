"""The sources of a feature dataset: manifests of the data, settings, and the resulting identity."""

from __future__ import annotations

from typing import Any

from ..data_gen.dataset import read_manifest
from ..data_gen.draft_states import mixing_for
from ..data_gen.feature_shards import KIND
from ..data_gen.kinds import AcceptanceRow, RoundsRow
from ..infer.loading.devices import pick_device
from .datasets import check_same, joint_fingerprint, joint_manifest, joint_sampling
from .options import FeatureDataOptions


def read_sources(settings: FeatureDataOptions) -> list[dict[str, Any]]:
    """The manifests of the datasets.

    Raises:
        InputError: one is of another kind, incomplete, or not of the same pair as the first.
    """
    manifests = [
        read_manifest(folder, AcceptanceRow.kind, RoundsRow.kind, complete=True) for folder in settings.folders
    ]
    check_same(settings.folders, manifests, ("fingerprint",))
    return manifests


def feature_identity(settings: FeatureDataOptions) -> dict[str, Any]:
    """Everything the features depend on, from the settings and the datasets' manifests.

    Raises:
        InputError: as :func:`read_sources`; also if specdec's mixed texts are asked for and a dataset is not acceptance
            data, or was sampled otherwise than the first.
    """
    options: dict[str, Any] = {"context": "target"}
    if settings.predictor == "specdec":
        mean = joint_manifest(settings.folders, AcceptanceRow.kind)["mean_acceptance"]
        mixing = mixing_for(mean) if settings.mixing is None else settings.mixing
        mixings = 1 if mixing == 1 else settings.mixings  # at 1 nothing is drawn
        options = {"context": "mixed", "mixing": mixing, "mixings": mixings, "seed": settings.seed}
    manifests = read_sources(settings)
    first = manifests[0]
    names = ("texts", "traced", "max_length", "validation_fraction", "dtype", "states")
    return {
        "kind": KIND,
        "target": settings.target or first["target"],
        "draft": settings.draft or first["draft"],
        "fingerprint": first["fingerprint"],
        **joint_sampling(manifests),
        "budget": max(manifest["settings"]["max_new_tokens"] for manifest in manifests),
        "datasets": [manifest["dataset_fingerprint"] for manifest in manifests],
        "data_fingerprint": joint_fingerprint(manifests),
        "settings": {
            **options, **{name: vars(settings)[name] for name in names}, "device": pick_device(settings.device).type
        },
    }  # fmt: skip
