"""The weights that ship with the package: tiny models, and the controllers trained for them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def shipped(name: str) -> Path | None:
    """The folder of the shipped model or controller ``name`` (``tiny``, ``tiny-draft``, …), or None."""
    folder = FOLDER / name
    return folder if "/" not in name and name.startswith("tiny") and (folder / "config.json").is_file() else None


def shipped_models() -> list[str]:
    """The names of the models that ship: a target's, its drafts'."""
    return [name for name in _names() if (FOLDER / name / "tokenizer.json").is_file()]


def shipped_controllers() -> list[str]:
    """The names of the controllers that ship."""
    return [name for name in _names() if not (FOLDER / name / "tokenizer.json").is_file()]


def _names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("tiny*/config.json"))
