"""Datasets on disk: Parquet shards and a manifest that lists the finished shards with their hashes.

A shard appears by atomic rename, then the manifest is updated. The manifest holds no clock times, so that a killed and
resumed run writes the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from ..common.errors import InputError
from ..common.files import replacing, sha256
from ..common.json_file import blaming, build, read_object
from ..common.lock import LOCK, FolderLock
from ..controllers.sampling import SamplingParams
from .rows import read_parquet

MANIFEST = "manifest.json"
SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Row:
    """One rollout with its labels (SpecDec++ §3.3); the three lists have the same length.

    A rollout is cut before the first token that is outside the draft's vocabulary, and empty if the prompt has such a
    token; training skips empty rows.

    Attributes:
        x: tokens sampled from the target, including the end token if it was reached.
        y: at every position a token sampled from the draft after the same prefix, y_i ~ q(·|prompt, x_<i).
        p: min(1, p(y_i)/q(y_i)), the probability that the target accepts y_i.
    """

    prompt_id: str
    prompt: str
    prompt_ids: list[int]
    x: list[int]
    y: list[int]
    p: list[float]


SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("prompt", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("x", pa.list_(pa.int32())),
        ("y", pa.list_(pa.int32())),
        ("p", pa.list_(pa.float32())),
    ]
)


R = TypeVar("R")
S = TypeVar("S")


class ShardWriter(ABC, Generic[S]):
    """Writes the shards of one dataset, continuing an earlier run with the same settings.

    Args:
        folder: the dataset's folder; created if necessary.
        identity: everything that determines the rows. A folder with another identity is refused.

    Attributes:
        suffix: suffix of a shard's file name.

    Raises:
        InputError: the folder belongs to another run, holds other files, or another process is writing to it.
    """

    suffix: str

    @abstractmethod
    def save(self, shard: S, file: Path) -> None:
        """Write the file of a shard."""

    @abstractmethod
    def entry(self, shard: S) -> dict[str, Any]:
        """The manifest's entry of a shard, without its file and hash."""

    def outcome(self, shards: list[dict[str, Any]]) -> dict[str, Any]:
        """Fields that the manifest of the complete dataset gets, computed from its shards' entries."""
        return {}

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self._lock = FolderLock(folder, "is writing this dataset")
        try:
            self._begun = not (folder / MANIFEST).exists()
            self.manifest = self._open(identity)
            for leftover in folder.glob("*.tmp"):
                leftover.unlink()
            self._save({})  # before the first shard: shards without a manifest could not be identified
        except BaseException:
            self.close()
            raise

    def _open(self, identity: dict[str, Any]) -> dict[str, Any]:
        if (self.folder / MANIFEST).exists():
            manifest = read_manifest(self.folder)
            differing = sorted(
                key for key in identity.keys() | manifest.keys() - OUTCOME if manifest.get(key) != identity.get(key)
            )
            if differing:
                raise InputError(
                    f"{self.folder}: belongs to a run with other settings ({', '.join(differing)} differ); "
                    "choose another output folder, or the settings in its manifest.json"
                )
            return manifest
        foreign = [path.name for path in self.folder.iterdir() if path.name != LOCK and path.suffix != ".tmp"]
        if foreign:
            raise InputError(f"{self.folder}: is not empty and holds no {MANIFEST}; choose another output folder")
        return {**identity, "shards": [], "mean_acceptance": None, "complete": False, "dataset_fingerprint": None}

    @property
    def finished(self) -> int:
        """Number of shards written so far."""
        return len(self.manifest["shards"])

    def missing(self, total: int) -> list[int]:
        """Indices of the shards, of ``total`` in all, that are not written yet."""
        written = self._written
        return [index for index in range(total) if self.file_of(index) not in written]

    @property
    def _written(self) -> set[str]:
        return {shard["file"] for shard in self.manifest["shards"]}

    def file_of(self, index: int) -> str:
        """File name of a shard."""
        return f"shard-{index:05d}.{self.suffix}"

    def forget_damaged(self) -> list[str]:
        """Take the shards that are missing or changed out of the manifest, to be written again; returns their names."""
        damaged = damaged_shards(self.folder, self.manifest)
        if damaged:
            whole = [shard for shard in self.manifest["shards"] if shard["file"] not in damaged]
            self._save(dict.fromkeys(OUTCOME) | {"shards": whole, "complete": False})
        return damaged

    def write(self, shard: S, index: int | None = None) -> None:
        """Write a shard, then its entry in the manifest.

        Args:
            index: the shard's place in the dataset, by default after the last. Shards may be written in any order; the
                manifest lists them by index.
        """
        if index is None:  # a shard before the last may have been taken out
            written = self._written
            index = next(index for index in count(self.finished) if self.file_of(index) not in written)
        path = self.folder / self.file_of(index)
        with replacing(path) as temporary:
            self.save(shard, temporary)
            digest = sha256(temporary)
        entry = {"file": path.name, **self.entry(shard), "sha256": digest}
        shards = sorted([*self.manifest["shards"], entry], key=lambda entry: (len(entry["file"]), entry["file"]))
        self._save({"shards": shards})

    def complete(self) -> None:
        """Mark the dataset finished."""
        shards = self.manifest["shards"]
        digest = hashlib.sha256("".join(shard["sha256"] for shard in shards).encode())
        self._save(self.outcome(shards) | {"dataset_fingerprint": digest.hexdigest(), "complete": True})

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


class ParquetWriter(ShardWriter[list[R]], Generic[R]):
    """Shards of rows in Parquet.

    Attributes:
        schema: columns of a shard, the fields of a row.
    """

    suffix = "parquet"
    schema: pa.Schema

    def save(self, shard: list[R], file: Path) -> None:
        table = pa.Table.from_pylist([vars(row) for row in shard], schema=self.schema)
        pq.write_table(table, file, compression="zstd")

    def entry(self, shard: list[R]) -> dict[str, Any]:
        return {"rows": len(shard), **self.sums(shard)}

    @abstractmethod
    def sums(self, rows: list[R]) -> dict[str, Any]:
        """Sums over a shard's rows for its manifest entry."""


class DatasetWriter(ParquetWriter[Row]):
    """Writes an acceptance dataset."""

    schema = SCHEMA

    def sums(self, rows: list[Row]) -> dict[str, Any]:
        return {
            "tokens": sum(len(row.x) for row in rows),
            "acceptance_sum": float(sum(sum(row.p) for row in rows)),
        }

    def outcome(self, shards: list[dict[str, Any]]) -> dict[str, Any]:
        tokens = sum(shard["tokens"] for shard in shards)
        return {"mean_acceptance": sum(shard["acceptance_sum"] for shard in shards) / max(1, tokens)}


OUTCOME = {"shards", "mean_acceptance", "complete", "dataset_fingerprint"}
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
AGAIN = "remove the folder and generate the data again"
REPAIR = "run the command that made the dataset again: it makes such shards again"
SERVED = "served requests cannot be made again: take the shard out of manifest.json"


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a dataset folder.

    Raises:
        InputError: there is none, it is damaged, or its schema version is newer.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder}: no dataset, it holds no {MANIFEST}; make one with 'specpilot data …'")
    return check_manifest(read_object(path, AGAIN), path)


def check_manifest(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Validate the manifest ``data``, read from ``path``, and return it.

    Raises:
        InputError: see :func:`read_manifest`.
    """
    with blaming(path, AGAIN):
        if data.get("schema_version") != SCHEMA_VERSION:
            raise InputError(
                f"schema_version={data.get('schema_version')!r}: this version of specpilot reads {SCHEMA_VERSION}"
            )
        for name, kind in KEYS.items():
            build(kind, data.get(name), name)
        for i, shard in enumerate(data["shards"]):
            for name in ("file", "sha256"):
                build(str, shard.get(name), f"shards[{i}].{name}")
    return data


def read_dataset(folder: str | Path) -> list[Row]:
    """All rows of an acceptance dataset; shards are checked against the manifest's hashes.

    Raises:
        InputError: a shard is missing or does not match the manifest.
    """
    return [Row(**row) for row in read_shards(folder)]


def read_shards(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of any dataset as dictionaries; shards are checked against the manifest's hashes.

    Raises:
        InputError: a shard is missing or does not match the manifest.
    """
    return [row for file in shard_files(folder) for row in read_parquet(file, AGAIN)]


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
