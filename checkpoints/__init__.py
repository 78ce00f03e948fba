"""The weights that ship with the package: tiny models, and the controllers trained for them.

The large files of a model are stored as ``.xz`` and unpacked beside it when the model is first named. Where that cannot
be written, each process unpacks them into a temporary folder of its own. Of bfloat16 weights
``xz --lzma2=preset=9e,lc=3,lp=1,pb=1`` leaves two thirds.
"""

from __future__ import annotations

import lzma
import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parent
PACKED = ".xz"


def shipped(name: str) -> Path | None:
    """Return the folder of the included model or controller ``name``, such as ``tiny``; None if there is none.

    Large files are unpacked first, see :func:`unpack`.
    """
    folder = FOLDER / name
    if "/" in name or not name.startswith("tiny") or not (folder / "config.json").is_file():
        return None
    try:
        unpack(folder, folder)
    except OSError:  # a package that another user has installed, a read-only image
        return Path(_unpacked_elsewhere(folder).name)
    return folder


def unpack(packed: Path, folder: Path) -> None:
    """Unpack the ``.xz`` files of a folder, except those that were unpacked before.

    Args:
        packed: the folder of the ``.xz`` files.
        folder: the folder in which the unpacked files are written.

    Raises:
        OSError: ``folder`` cannot be written.
    """
    for file in packed.glob(f"*{PACKED}"):
        place, changed = folder / file.stem, file.stat().st_mtime_ns
        if place.is_file() and place.stat().st_mtime_ns == changed:
            continue
        with TemporaryDirectory(prefix=".", dir=folder) as temporary:
            part = Path(temporary, file.stem)
            with lzma.open(file) as content, open(part, "wb") as output:
                shutil.copyfileobj(content, output)
            os.utime(part, ns=(changed, changed))
            part.replace(place)


@cache
def _unpacked_elsewhere(folder: Path) -> TemporaryDirectory[str]:
    """Return a temporary folder with the unpacked files of ``folder``, which lasts as long as the process."""
    place = TemporaryDirectory(prefix=f"{folder.name}-")
    for file in folder.iterdir():
        if file.is_file() and file.suffix != PACKED and not file.with_name(f"{file.name}{PACKED}").exists():
            shutil.copy2(file, place.name)
    unpack(folder, Path(place.name))
    return place


def shipped_models() -> list[str]:
    """Return the names of the included models, a target and its drafts, in alphabetical order."""
    return [name for name in _names() if (FOLDER / name / "tokenizer_config.json").is_file()]


def shipped_controllers() -> list[str]:
    """Return the names of the included controllers, in alphabetical order."""
    return [name for name in _names() if not (FOLDER / name / "tokenizer_config.json").is_file()]


def _names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("tiny*/config.json"))
