"""The weights that ship with the package: tiny models, and the controllers trained for them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def shipped(name: str) -> Path | None:
    """The folder of the shipped model or controller ``name`` (``tiny``, ``tiny-draft``, …), or None."""
    folder = FOLDER / name
    return folder if "/" not in name and name.startswith("tiny") and (folder / "config.json").is_file() else None


def shipped_names() -> list[str]:
    """Everything that ships."""
    return sorted(path.parent.name for path in FOLDER.glob("tiny*/config.json"))
