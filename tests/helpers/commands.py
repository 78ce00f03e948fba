"""Commands that parse their arguments and do not run."""

import functools
from collections.abc import Mapping
from typing import Any


def inert(commands: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``commands`` whose functions read their arguments and do nothing."""
    return {
        name: inert(entry) if isinstance(entry, Mapping) else functools.wraps(entry)(lambda *_, **__: None)
        for name, entry in commands.items()
    }
