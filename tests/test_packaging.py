"""The wheel: everything of ours under `specpilot/`, all data inside, nothing else at the top level."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

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
        kinds = ("*.py", "*.yaml", "*.jsonl.xz", "py.typed", "static/*", "document.css")
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
