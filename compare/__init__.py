"""Compares decoders: replay and clock, costs, intervals, results.

The package can be called, since it has the name of what it does: ``specpilot.compare(…)`` is :func:`.run.compare`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from .run import compare

        return compare(*arguments, **options)


sys.modules[__name__].__class__ = _Package
