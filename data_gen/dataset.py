"""Datasets on disk: shards, and a manifest that lists the finished shards with their hashes.

A shard appears by atomic rename, then the manifest is updated. The manifest holds no clock times, so that a killed and
resumed run writes the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from reprlib import repr as short
from typing import Any, ClassVar, Protocol, Self

from ..common.errors import InputError
from ..common.files import LOCK, MANIFEST, FolderLock, lacking, replacing, sha256
from ..common.json_file import blaming, build, read_object
from ..controllers.sampling import SamplingParams

SCHEMA_VERSION = 3
VERSIONS = {"schema_version": SCHEMA_VERSION, "code_version": version("specpilot")}  # in every manifest

# Kind of a dataset → what makes it.
COMMANDS = {
    "acceptance": "specpilot data acceptance",
    "answers": "specpilot data answers",
    "rounds": "specpilot data on-policy",
    "router": "specpilot data router",
    "features": "specpilot data features",
    "responses": "specpilot data acceptance --responses",
}
# Keys in the manifest of every kind of dataset.
KEYS: dict[str, Any] = {
    "kind": str,
    "target": str,
    "draft": str | None,
    "fingerprint": dict[str, str],
    "sampling": SamplingParams,
    "shards": list[dict[str, Any]],
    "mean_acceptance": float | None,
    "complete": bool,
    "dataset_fingerprint": str | None,
}
OUTCOME = {"shards", "mean_acceptance", "complete", "dataset_fingerprint"}  # keys that are no part of the identity
MAKE_AGAIN = "remove the folder and generate the data again"
REPAIR = "run the command that made the dataset again: it makes such shards again"
SERVED = "served requests cannot be made again: take the shard out of manifest.json"


class Shard(Protocol):
    """What a shard's file holds.

    Attributes:
        suffix: suffix of the file's name.
    """

    suffix: ClassVar[str]

    def save(self, file: Path) -> None:
        """Write the file."""

    def counts(self) -> dict[str, Any]:
        """The manifest's entry of the shard, without its file and hash.

        ``acceptance_sum`` and ``drafted``, where there are both, make the dataset's mean acceptance.
        """


class ShardWriter:
    """Writes the shards of one dataset, continuing an earlier run with the same settings.

    Args:
        folder: the dataset's folder; created if necessary.
        identity: everything that determines the shards. A folder with another identity is refused.

    Raises:
        InputError: the folder belongs to another run, holds other files, or another process is writing to it.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self._lock = FolderLock(folder, "is writing this dataset")
        try:
            self._begun = not (folder / MANIFEST).exists()
            self.manifest = self._open(VERSIONS | identity)
            for leftover in folder.glob("*.tmp"):
                leftover.unlink()
            self._save({})  # before the first shard: shards without a manifest could not be identified
        except BaseException:
            self.close()
            raise

    def _open(self, identity: dict[str, Any]) -> dict[str, Any]:
        if (self.folder / MANIFEST).exists():
            manifest = read_manifest(self.folder)
            begun = {key: value for key, value in manifest.items() if key not in OUTCOME}
            if found := differences(begun, identity):
                shown = "; ".join(f"{name} was {short(old)} and is {short(new)}" for name, (old, new) in found.items())
                raise InputError(
                    f"{self.folder}: belongs to a run with other settings: {shown}; give what it was, or another "
                    "output folder"
                )
            return manifest
        foreign = [path.name for path in self.folder.iterdir() if path.name != LOCK and path.suffix != ".tmp"]
        if foreign:
            raise InputError(f"{self.folder}: is not empty and holds no {MANIFEST}; choose another output folder")
        return {**identity, "shards": [], "mean_acceptance": None, "complete": False, "dataset_fingerprint": None}

    @property
    def path(self) -> Path:
        """The dataset's folder."""
        return self.folder

    @property
    def noun(self) -> str:
        """What a row is: of one text there may be several readings."""
        return "reading" if self.manifest["kind"] == "features" else "text"

    @property
    def is_complete(self) -> bool:
        return bool(self.manifest["complete"])

    @property
    def tokens(self) -> int:
        """Number of tokens of all shards, or of examples where shards count rows."""
        return sum(shard.get("tokens", shard.get("rows", 0)) for shard in self.manifest["shards"])

    def missing(self, total: int) -> list[int]:
        """Numbers of the shards, of ``total`` in all, that are not written yet."""
        written = {Path(shard["file"]).stem for shard in self.manifest["shards"]}
        return [index for index in range(total) if stem_of(index) not in written]

    def forget_damaged(self) -> list[str]:
        """Take the shards that are missing or changed out of the manifest, to be written again; returns their names."""
        damaged = damaged_shards(self.folder, self.manifest)
        if damaged:
            whole = [shard for shard in self.manifest["shards"] if shard["file"] not in damaged]
            self._save(dict.fromkeys(OUTCOME) | {"shards": whole, "complete": False})
        return damaged

    def write(self, shard: Shard, index: int | None = None) -> None:
        """Write a shard, then its entry in the manifest.

        Args:
            index: the shard's place in the dataset, by default after the last. Shards may be written in any order; the
                manifest lists them by index.
        """
        if index is None:  # a shard before the last may have been taken out
            count = len(self.manifest["shards"])
            index = next(index for index in self.missing(2 * count + 1) if index >= count)
        path = self.folder / f"{stem_of(index)}.{shard.suffix}"
        with replacing(path) as temporary:
            shard.save(temporary)
            digest = sha256(temporary)
        entry = {"file": path.name, **shard.counts(), "sha256": digest}
        shards = sorted([*self.manifest["shards"], entry], key=lambda entry: (len(entry["file"]), entry["file"]))
        self._save({"shards": shards})

    def complete(self) -> None:
        """Mark the dataset finished."""
        shards = self.manifest["shards"]
        digest = hashlib.sha256("".join(shard["sha256"] for shard in shards).encode()).hexdigest()
        self._save({"mean_acceptance": mean_acceptance(shards), "dataset_fingerprint": digest, "complete": True})

    def _save(self, changes: dict[str, Any]) -> None:
        """Write the manifest with ``changes``, which hold once they are on disk."""
        manifest = self.manifest | changes
        with replacing(self.folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        self.manifest = manifest

    def close(self) -> None:
        """Release the folder's lock."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._begun and {path.name for path in self.folder.iterdir()} <= {MANIFEST, LOCK}:
            (self.folder / MANIFEST).unlink(missing_ok=True)  # no shard was written
        self.close()


def differences(one: Any, other: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """The values in which two nested dictionaries differ, by their keys with dots between; None where there is none."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return {} if one == other else {name: (one, other)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*one, *other)):
        found |= differences(one.get(key), other.get(key), f"{name}.{key}".lstrip("."))
    return found


def stem_of(index: int) -> str:
    """File name of a shard, without its suffix."""
    return f"shard-{index:05d}"


def mean_acceptance(shards: list[dict[str, Any]]) -> float | None:
    """Mean acceptance probability of the drafted tokens of ``shards``, entries of manifests; None if none counts it."""
    counted = [shard for shard in shards if "acceptance_sum" in shard and "drafted" in shard]
    if not counted:
        return None
    drafted = sum(shard["drafted"] for shard in counted)
    return float(sum(shard["acceptance_sum"] for shard in counted) / max(1, drafted))


def read_manifest(folder: str | Path, *kinds: str, complete: bool = False) -> dict[str, Any]:
    """The manifest of a dataset folder.

    Args:
        kinds: what the dataset may be. Default: anything.
        complete: whether it must be complete.

    Raises:
        InputError: there is none, it is damaged, its schema version is another, or the dataset is of another kind or
            incomplete.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder}: no dataset, {lacking(path.parent, MANIFEST)}; make one with 'specpilot data …'")
    manifest = check_manifest(read_object(path, MAKE_AGAIN), path)
    kind = manifest["kind"]
    if kinds and kind not in kinds:
        commands = " or ".join(f"'{COMMANDS[kind]}'" for kind in kinds)
        raise InputError(f"{folder}: a dataset of kind {kind!r}; make one with {commands}")
    if complete and not manifest["complete"]:
        raise InputError(f"{folder}: the dataset is incomplete; run '{COMMANDS[kind]}' again to finish it")
    return manifest


def day_in(file: Path) -> str | None:
    """The date for the chat template that a manifest or a run's description of its data holds; None if there is none.

    Raises:
        InputError: the file is damaged.
    """
    found = read_object(file, MAKE_AGAIN) if file.is_file() else {}
    with blaming(file, MAKE_AGAIN):
        return build(str, found["day"], "day") if found.get("day") is not None else None


def check_manifest(manifest: dict[str, Any], path: Path) -> dict[str, Any]:
    """Validate ``manifest``, read from ``path``, and return it.

    Raises:
        InputError: see :func:`read_manifest`.
    """
    with blaming(path, MAKE_AGAIN):
        if manifest.get("schema_version") != SCHEMA_VERSION:
            raise InputError(f"schema_version={manifest.get('schema_version')!r}: this version reads {SCHEMA_VERSION}")
        for name, kind in KEYS.items():
            build(kind, manifest.get(name), name)
        for i, shard in enumerate(manifest["shards"]):
            for name in ("file", "sha256"):
                build(str, shard.get(name), f"shards[{i}].{name}")
    return manifest


def whole_manifest(folder: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of a dataset with ``identity``; None if there is none, or it is another, incomplete or damaged."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = read_manifest(folder)
    wanted = (VERSIONS | identity).items() <= manifest.items() and manifest["complete"]
    return manifest if wanted and not damaged_shards(folder, manifest) else None


def shard_files(folder: str | Path) -> Iterator[Path]:
    """Yield the shards of a dataset in order, after checking each against the manifest's hash.

    Raises:
        InputError: a shard is missing or does not match the manifest.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for shard in manifest["shards"]:
        if damaged_shards(folder, {"shards": [shard]}):
            remedy = SERVED if manifest.get("served") else REPAIR
            raise InputError(f"{folder / shard['file']}: missing or changed since it was written; {remedy}")
        yield folder / shard["file"]


def damaged_shards(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """Names of the shards that are missing or do not match the manifest's hashes."""
    files = {shard["file"]: shard["sha256"] for shard in manifest["shards"]}
    return [name for name, digest in files.items() if not (folder / name).is_file() or sha256(folder / name) != digest]
