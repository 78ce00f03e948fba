"""Old key names in files of specpilot 0.1."""

from __future__ import annotations

from typing import Any

RENAMED = {
    "warp": "sampling",
    "origin": "provenance",
    "foresees": "predicts_next",
    "looks_up": "uses_ngrams",
    "type": "kind",
}


def rename_old_keys(data: Any) -> Any:
    """The JSON value ``data`` with old keys renamed at any depth."""
    if isinstance(data, dict):
        return {RENAMED.get(name, name): rename_old_keys(value) for name, value in data.items()}
    if isinstance(data, list):
        return [rename_old_keys(value) for value in data]
    return data


def upgrade_config(data: dict[str, Any]) -> dict[str, Any]:
    """A controller's ``config.json`` in the current layout, with ``provenance`` and ``datasets``."""
    data = rename_old_keys(data)
    if "dataset_fingerprint" in data:
        data["datasets"] = [data.pop("dataset_fingerprint")]
    if "target_fingerprint" in data:  # a router
        keys = {"target": "target_fingerprint", "tokenizer": "tokenizer_fingerprint"}
        data["fingerprint"] = {"draft": None, **{part: data.pop(key, None) for part, key in keys.items()}}
        data["draft"] = None
    if "provenance" not in data:
        names = ("target", "draft", "fingerprint", "sampling")
        data["provenance"] = {name: data.pop(name) for name in names if name in data}
    return data
