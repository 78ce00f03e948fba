"""Training data from one or several dataset folders of the same models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ..common.errors import InputError, counted, naming
from ..common.record import Identity
from ..controllers.checkpoints.fingerprint import model_fingerprint
from ..controllers.sampling import SamplingParams
from ..controllers.training_options import MIXED
from ..data_gen.dataset import Manifest, mean_acceptance, read_manifest, rule_identity
from ..data_gen.draft_states import mixing_for
from ..data_gen.feature_shards import KIND
from ..data_gen.kinds import LABELLED, AcceptanceRow, RouterRow
from ..data_gen.router_dataset import RouterDataset, read_router_dataset
from ..infer.random_source import text_seed
from ..models import LoadedModel
from ..models.loading.devices import pick_device
from ..models.loading.names import load_any_model
from .options import FeatureDataOptions

T = TypeVar("T")
# Fields in which datasets of a training must agree.
SAME = ("kind", "fingerprint", "sampling", "verifier", "arms", "hidden_size")


def load_same(role: str, name: str, manifest: Manifest, **options: Any) -> LoadedModel:
    """Return the target or the draft with which data was made.

    Args:
        role: ``"target"`` or ``"draft"``.
        name: the name from which the model is loaded.
        manifest: manifest of the data.
        options: further keywords of :func:`~specpilot.models.loading.names.load_any_model`.

    Raises:
        InputError: the model cannot be loaded, or is another model than that of the data.
    """
    with naming(role, name):
        model = load_any_model(name, decoder_only=True, **options)
    if model_fingerprint(model) != manifest.fingerprint[role]:
        raise InputError(
            f"{role}={name!r}: is not the {role} of the data; name the data's {role}, or make data with this one"
        )
    return model


def router_rows(folders: Sequence[str]) -> RouterDataset:
    """Return the concatenated router datasets, with the times of the first one."""
    parts = [read_router_dataset(folder) for folder in folders]
    return replace(
        parts[0], manifest=joint_manifest(folders, RouterRow.kind), rows=[row for part in parts for row in part.rows]
    )


def fingerprints(manifest: Manifest) -> list[str]:
    """Return the SHA-256 of each dataset from which the data of ``manifest`` comes.

    Raises:
        InputError: the manifest is that of a single dataset, which is incomplete.
    """
    return manifest.datasets or [fingerprint_of(manifest)]


def fingerprint_of(manifest: Manifest) -> str:
    """Return the SHA-256 of a dataset, its ``dataset_fingerprint``.

    Raises:
        InputError: the dataset is incomplete.
    """
    if manifest.dataset_fingerprint is None:
        raise InputError(f"a dataset of kind {manifest.kind!r} is incomplete; run the command that made it again")
    return manifest.dataset_fingerprint


def check_same(folders: Sequence[str], manifests: Sequence[Manifest], names: Sequence[str] = SAME) -> None:
    """Check that all datasets agree in some fields of their manifests.

    Args:
        folders: the datasets' folders, for messages.
        manifests: their manifests.
        names: names of the fields.

    Raises:
        InputError: a manifest differs from the first in a field.
    """
    for folder, manifest in zip(folders, manifests, strict=True):
        for name in names:
            if getattr(manifest, name) != getattr(manifests[0], name):
                raise InputError(
                    f"{folder}: {name} differs from that of {folders[0]}; give datasets that have it in common"
                )


def joint_manifest(folders: Sequence[str], kind: str) -> Manifest:
    """Return the joint manifest of complete datasets of ``kind``.

    It is the manifest of the first dataset, with the shards, prompts, mean acceptance and fingerprints of all datasets.
    The manifest of a single dataset is returned unchanged.

    Args:
        folders: the datasets' folders.
        kind: kind of the datasets.

    Raises:
        InputError: a dataset is missing, damaged, of another kind, incomplete or without answers; or it differs from
            the first in models, arms, sampling parameters, verification rule or embedding size.
    """
    manifests = [read_manifest(folder, kind, complete=True) for folder in folders]
    check_same(folders, manifests)
    first = manifests[0]
    if len(manifests) == 1:
        return first
    shards = [shard for manifest in manifests for shard in manifest.shards]
    return replace(
        first,
        shards=shards,
        prompts=[manifest.prompts for manifest in manifests if not isinstance(manifest.prompts, list)],
        mean_acceptance=mean_acceptance(shards),
        dataset_fingerprint=joint_fingerprint(manifests),
        datasets=[fingerprint_of(manifest) for manifest in manifests],
    )


def joint_sampling(manifests: Sequence[Manifest]) -> list[SamplingParams]:
    """Return the different sampling parameters of datasets, those of the first dataset first."""
    return [*dict.fromkeys(manifest.sampling for manifest in manifests)]


def joint_fingerprint(manifests: Sequence[Manifest]) -> str:
    """Return a fingerprint of all datasets together; for a single dataset its own fingerprint."""
    fingerprints = [fingerprint_of(manifest) for manifest in manifests]
    return fingerprints[0] if len(fingerprints) == 1 else hashlib.sha256("\0".join(fingerprints).encode()).hexdigest()


def is_validation(prompt_id: str, fraction: float) -> bool:
    """Return true if a prompt is held out for validation.

    The hash of the prompt's id decides, so that more data does not change the split.

    Args:
        prompt_id: the id.
        fraction: share of the prompts that are held out.
    """
    return text_seed(prompt_id) < fraction * 2**64


def split(items: Iterable[T], ids: Iterable[str], fraction: float) -> tuple[list[T], list[T]]:
    """Return the training part and the validation part of ``items``, both in order.

    Args:
        items: the items.
        ids: the id of the prompt of each item. Items of one prompt are in the same part.
        fraction: share of the prompts that are held out for validation.
    """
    parts: tuple[list[T], list[T]] = [], []
    for item, name in zip(items, ids, strict=True):
        parts[is_validation(name, fraction)].append(item)
    return parts


def require_both(training: int, validation: int, fraction: float, noun: str) -> None:
    """Check that training and validation have examples.

    Args:
        training, validation: their numbers of examples.
        fraction: the option ``validation_fraction``, for the message.
        noun: noun of an example, for the message.

    Raises:
        InputError: one of the numbers is 0.
    """
    if not (training and validation):
        raise InputError(
            f"validation_fraction={fraction}: gives {counted(training, noun)} to training and {validation} to "
            "validation; each needs at least one; use more data or another fraction"
        )


def read_sources(settings: FeatureDataOptions) -> list[Manifest]:
    """Return the manifests of the datasets.

    Raises:
        InputError: a dataset is of another kind, incomplete, or has another pair or verification rule than the first.
    """
    manifests = [read_manifest(folder, *LABELLED, complete=True) for folder in settings.folders]
    check_same(settings.folders, manifests, ("fingerprint", "verifier"))
    return manifests


def feature_identity(settings: FeatureDataOptions) -> Identity:
    """Return all settings on which features depend, from the options and the manifests of the datasets.

    Raises:
        InputError: as :func:`read_sources`; for mixed texts of specdec also if a dataset is not acceptance data, or has
            other sampling parameters than the first.
    """
    options: dict[str, object] = {"context": settings.context}
    if settings.context == MIXED:
        mean = joint_manifest(settings.folders, AcceptanceRow.kind).mean_acceptance
        assert mean is not None, "acceptance data has labels"
        mixing = mixing_for(mean) if settings.mixing is None else settings.mixing
        mixings = 1 if mixing == 1 else settings.mixings  # with a share of 1, nothing is random
        options |= {"mixing": mixing, "mixings": mixings, "seed": settings.seed}
    manifests = read_sources(settings)
    first, (sampling, *further) = manifests[0], joint_sampling(manifests)
    names = ("texts", "traced", "max_length", "validation_fraction", "dtype", "states")
    return {
        "kind": KIND,
        "target": settings.target or first.target,
        "draft": settings.draft or first.draft,
        "fingerprint": first.fingerprint,
        "sampling": sampling.to_dict(),
        **({"other_sampling": [parameters.to_dict() for parameters in further]} if further else {}),
        **rule_identity(first.verifier),
        "budget": max(manifest.rollouts.max_new_tokens for manifest in manifests),
        "datasets": [fingerprint_of(manifest) for manifest in manifests],
        "data_fingerprint": joint_fingerprint(manifests),
        "settings": {
            **options, **{name: vars(settings)[name] for name in names}, "device": pick_device(settings.device).type
        },
    }  # fmt: skip
