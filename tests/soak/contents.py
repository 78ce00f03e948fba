"""What a stage leaves on disk: whether any file is half-written, and a digest to compare two runs by."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import yaml
from safetensors.torch import load_file
from specpilot.common.files import sha256
from specpilot.common.lock import LOCK
from specpilot.data_gen.dataset import MANIFEST, shard_files

# A run's id and command lines, measured times, and the lock of a process that was killed.
DIFFERENT = ("env.json", "command.txt", "times.json", LOCK)
MEASURED = ("machine", "versions", "settings")  # of a benchmark's result
UNFINISHED = ".tmp"  # replaced, or removed, by the next run


def damage(folder: Path) -> str | None:
    """The first file that cannot be read to its end or is not what its manifest says; None if there is none."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != UNFINISHED:
            try:
                _read(path)
            except Exception as error:  # whatever the file's reader raises
                return f"{path.relative_to(folder)}: {type(error).__name__}: {error}"
    return None


def contents(folder: Path) -> dict[str, str]:
    """A digest of every file that two runs of the same stage must have in common, by name."""
    return {
        str(path.relative_to(folder)): _digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in DIFFERENT
    }


def difference(folder: Path, whole: dict[str, str]) -> str | None:
    """The first file that differs from the contents of an undisturbed run; None if there is none."""
    found = contents(folder)
    for name in sorted(found.keys() | whole.keys()):
        if found.get(name) != whole.get(name):
            return f"{name} is {'left over' if name not in whole else 'missing' if name not in found else 'different'}"
    return None


def _read(path: Path) -> object:
    match path.suffix:
        case ".json":
            found = json.loads(path.read_text(encoding="utf-8"))
            return list(shard_files(path.parent)) if path.name == MANIFEST else found
        case ".yaml":
            return yaml.safe_load(path.read_text(encoding="utf-8"))
        case ".parquet":
            return pq.ParquetFile(path).read()
        case ".safetensors":
            return load_file(path)
        case ".ckpt":
            return torch.load(path, weights_only=True)
    return path.read_bytes()


def _digest(path: Path) -> str:
    if path.suffix == ".ckpt":
        return _digest_of(_weights(torch.load(path, weights_only=True)))
    if path.name == "result.json":
        result = json.loads(path.read_text(encoding="utf-8"))
        return _digest_of({name: value for name, value in result.items() if name not in MEASURED})
    return sha256(path)


def _weights(checkpoint: dict[str, Any]) -> Any:
    """All of the best weights' file, and the weights of a training's state: the rest counts batches since a start."""
    return checkpoint.get("state_dict", checkpoint)


def _digest_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return hashlib.sha256(repr([(key, _digest_of(entry)) for key, entry in value.items()]).encode()).hexdigest()
    return hashlib.sha256(repr(value).encode()).hexdigest()
