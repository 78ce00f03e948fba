"""Packed files that ship are unpacked when they are first asked for."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest
from specpilot import checkpoints


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one model."""
    monkeypatch.setattr(checkpoints, "FOLDER", tmp_path)
    model = tmp_path / "tiny-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors.xz").write_bytes(lzma.compress(b"weights"))
    return model


def test_unpacked_once_and_again_when_it_has_changed(folder: Path) -> None:
    assert checkpoints.shipped("tiny-model") == folder
    unpacked = folder / "model.safetensors"
    assert unpacked.read_bytes() == b"weights"
    before = unpacked.stat().st_ino
    checkpoints.shipped("tiny-model")
    assert unpacked.stat().st_ino == before
    (folder / "model.safetensors.xz").write_bytes(lzma.compress(b"others"))
    os.utime(folder / "model.safetensors.xz", ns=(0, 10**18))
    checkpoints.shipped("tiny-model")
    assert unpacked.read_bytes() == b"others"
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "model.safetensors.xz"}


def test_elsewhere_if_the_package_cannot_be_written_to(folder: Path) -> None:
    (folder / "model.safetensors").mkdir()  # nobody can replace it by a file
    (folder / "model.safetensors" / "full").touch()
    found = checkpoints.shipped("tiny-model")
    assert found is not None
    assert found != folder
    assert {path.name: path.read_bytes() for path in found.iterdir()} == {
        "config.json": b"{}", "model.safetensors": b"weights"
    }  # fmt: skip
    assert checkpoints.shipped("tiny-model") == found
