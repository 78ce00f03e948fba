"""Keys of files that specpilot 0.1 wrote, by the names they have now."""

from __future__ import annotations

from typing import Any

RENAMED = {"warp": "sampling", "origin": "provenance", "foresees": "predicts_next", "looks_up": "uses_ngrams"}


def rename_old_keys(data: Any) -> Any:
    """The JSON value ``data`` with its old keys, at any depth, renamed."""
    if isinstance(data, dict):
        return {RENAMED.get(name, name): rename_old_keys(value) for name, value in data.items()}
    if isinstance(data, list):
        return [rename_old_keys(value) for value in data]
    return data
