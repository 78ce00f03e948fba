"""Builds the package with setuptools. Only the development install differs.

`pip install -e .` makes `.editable/specpilot`, a package of links to the folders of this checkout, and puts `.editable`
on `sys.path`. Python, editors and mypy then find an ordinary package. Setuptools itself would install an import hook,
which editors and mypy cannot follow, and which loses to a checkout called `specpilot` in the current folder.

New files are importable at once, because folders are linked. A new file in `api/` or a new folder at the top of the
checkout needs another `pip install -e .`.
"""

import base64
import hashlib
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the other hooks

ROOT = Path(__file__).resolve().parent
LINKS = ROOT / ".editable"
WHEEL = "Wheel-Version: 1.0\nGenerator: build_backend\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_editable(
    wheel_directory: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Write the wheel of a development install (PEP 660), and return its name.

    The wheel has the metadata and a path to the links.
    """
    link_package()
    with tempfile.TemporaryDirectory() as temporary:
        folder = build_meta.prepare_metadata_for_build_wheel(temporary, config_settings)
        files = {f"{folder}/{path.relative_to(Path(temporary, folder)).as_posix()}": path.read_bytes()
                 for path in Path(temporary, folder).rglob("*") if path.is_file()}  # fmt: skip
    files |= {"specpilot.pth": f"{LINKS}\n".encode(), f"{folder}/WHEEL": WHEEL.encode()}
    record = [f"{name},sha256={digest(content)},{len(content)}\n" for name, content in files.items()]
    record.append(f"{folder}/RECORD,,\n")
    wheel = f"{folder.removesuffix('.dist-info')}-0.editable-py3-none-any.whl"
    with ZipFile(Path(wheel_directory, wheel), "w") as archive:
        for name, content in {**files, f"{folder}/RECORD": "".join(record).encode()}.items():
            archive.writestr(name, content)
    return wheel


def digest(content: bytes) -> str:
    """Return the SHA-256 of ``content`` in the form of a wheel's RECORD."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def link_package() -> None:
    """Make the links in ``LINKS`` for the packages of pyproject.toml, and remove links of earlier installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    targets: dict[Path, Path] = {}
    for package, folder in project["tool"]["setuptools"]["package-dir"].items():
        place = LINKS / package.replace(".", "/")
        if "." not in package:  # link its files, because the other packages are beside them
            targets |= {place / path.name: path for path in (ROOT / folder).iterdir() if path.is_file()}
        elif package.count(".") == 1:  # the folder contains the packages below this one
            targets[place] = ROOT / folder
    for place in {place.parent for place in targets}:
        place.mkdir(parents=True, exist_ok=True)
        for path in place.iterdir():
            if path.is_symlink() and targets.get(path) != path.resolve():
                path.unlink()
    for place, target in targets.items():
        if not place.is_symlink():
            place.symlink_to(Path("../..", target.relative_to(ROOT)), target_is_directory=target.is_dir())
