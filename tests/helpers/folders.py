"""Checks of files on disk: half-written files, equal folders, and damage to files."""

import hashlib
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file
from specpilot.common.files import LOCK, sha256
from specpilot.data_gen.dataset import MANIFEST, shard_files

# A run's id and command lines, measured times, and the lock of a process that was killed.
DIFFERENT = ("env.json", "command.txt", "times.json", LOCK)
UNFINISHED = ".tmp"  # replaced, or removed, by the next run


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A temporary folder that all processes of a test run share."""
    top = factory.getbasetemp()
    folder = (top.parent if "PYTEST_XDIST_WORKER" in os.environ else top) / name
    folder.mkdir(exist_ok=True)
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Return digests, by name, of the files that are the same in two runs of a stage."""
    return {
        str(path.relative_to(folder)): _digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in DIFFERENT
    }


def assert_whole(folder: Path) -> None:
    """Check that every finished file can be read to its end and matches its manifest."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != UNFINISHED:
            _read(path)


def truncated(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


def one_bit(content: bytes, random: Random) -> bytes:
    """Return ``content`` with one bit changed."""
    place = random.randrange(8 * len(content))
    turned = bytearray(content)
    turned[place // 8] ^= 1 << place % 8
    return bytes(turned)


def _read(path: Path) -> object:
    match path.suffix:
        case ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            return list(shard_files(path.parent)) if path.name == MANIFEST else content
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
    if path.suffix != ".ckpt":
        return sha256(path)
    checkpoint = torch.load(path, weights_only=True)
    # All of the best weights' file; of a training's state the weights: the rest counts batches since a start.
    return _digest_of(checkpoint.get("state_dict", checkpoint))


def _digest_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return hashlib.sha256(repr([(key, _digest_of(entry)) for key, entry in value.items()]).encode()).hexdigest()
    return hashlib.sha256(repr(value).encode()).hexdigest()
