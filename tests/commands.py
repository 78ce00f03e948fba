"""Commands that only read their arguments."""

import functools
from collections.abc import Mapping
from typing import Any


def inert(commands: Mapping[str, Any]) -> dict[str, Any]:
    """``commands`` that read their arguments and do nothing."""
    return {
        name: inert(entry) if isinstance(entry, Mapping) else functools.wraps(entry)(lambda *_, **__: None)
        for name, entry in commands.items()
    }


def listening(commands: Mapping[str, Any], heard: list[Any]) -> dict[str, Any]:
    """``commands`` that add their arguments to ``heard`` and do nothing."""

    def listener(entry: Any) -> Any:
        return functools.wraps(entry)(lambda *arguments, **named: heard.extend([*arguments, *named.values()]))

    return {
        name: listening(entry, heard) if isinstance(entry, Mapping) else listener(entry)
        for name, entry in commands.items()
    }
