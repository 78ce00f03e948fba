"""Base class of results that are stored as JSON, such as reports, measurements and manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from .json_file import build

Identity = Mapping[str, object]  # all settings that determine a result or dataset, as JSON values


class Record:
    """Base class of dataclasses whose fields are JSON values or other dataclasses."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {entry.name: to_json(getattr(self, entry.name)) for entry in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "") -> Self:
        """Return the record that :meth:`to_dict` wrote.

        Unknown keys, which other versions may write, are ignored. Missing keys have their default.

        Args:
            values: the fields as JSON values.
            name: name of ``values`` in error messages.

        Raises:
            InputError: a value has a wrong type, or a key without a default is missing.
        """
        return build(cls, values, name, ignore_unknown=True)


class SparseRecord(Record):
    """A record that is stored without the fields that have their default."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as JSON values."""
        entries = fields(self)  # type: ignore[arg-type]
        defaults = {
            entry.name: entry.default if entry.default_factory is MISSING else entry.default_factory()
            for entry in entries
        }
        return {name: value for name, value in super().to_dict().items() if value != defaults[name]}


def to_json(value: Any) -> Any:
    """Return ``value`` as JSON values: dataclasses become objects, sequences lists, and paths text."""
    if isinstance(value, Record):
        return value.to_dict()
    if is_dataclass(value):
        return {entry.name: to_json(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [*map(to_json, value)]
    return str(value) if isinstance(value, Path) else value
