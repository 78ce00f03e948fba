"""The wheel: all of ours under `specpilot/`, all data inside; packed files are unpacked when they are asked for."""

import lzma
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from specpilot import checkpoints

ROOT = Path(__file__).parent.parent
FOLDERS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the wheel's files, built from a copy: building leaves folders behind, and old ones would leak in."""
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    for folder in {folder.partition("/")[0] for folder in FOLDERS.values()}:
        shutil.copytree(ROOT / folder, source / folder, ignore=NOT_SHIPPED)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(work)!r})"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    (path,) = work.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_one_top_level_name(wheel: set[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"specpilot"}


def test_everything_is_inside(wheel: set[str]) -> None:
    """Source, typing marker, configurations and weights: all that lies in the package folders."""
    expected = set()
    for package, folder in FOLDERS.items():
        inside = package.replace(".", "/")
        kinds = ("*.py", "*.yaml", "*.jsonl.xz", "py.typed", "static/*", "page.*")
        expected |= {
            f"{inside}/{path.relative_to(ROOT / folder)}" for kind in kinds for path in (ROOT / folder).glob(kind)
        }
    weights = (path for path in (ROOT / "checkpoints").rglob("*") if path.is_file())
    weights = (path for path in weights if not path.with_name(f"{path.name}.xz").exists())
    expected |= {
        f"specpilot/{path.relative_to(ROOT).as_posix()}"
        for path in weights
        if not any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)
    }
    assert "specpilot/py.typed" in expected
    assert {name for name in wheel if ".dist-info/" not in name} == expected


def test_licence_and_console_script(wheel: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel)


# Packed files that ship are unpacked when they are first asked for


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
