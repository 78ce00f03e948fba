"""Registries whose entries are defined in a file each, as the constant ``RULE``."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, TypeVar


class Named(Protocol):
    """An entry of a registry."""

    @property
    def name(self) -> str:
        """The name by which users choose the entry."""
        ...


R = TypeVar("R", bound=Named)


def rules_in(package: str, files: Iterable[str], kind: type[R]) -> dict[str, R]:
    """Return the rules of a package by name: the constant ``RULE`` of each of its modules in ``files``.

    Args:
        package: full name of the package.
        files: names of the modules.
        kind: class of the rules.
    """
    rules: list[R] = [import_module(f".{file}", package).RULE for file in files]
    assert all(isinstance(rule, kind) for rule in rules)
    return {rule.name: rule for rule in rules}
