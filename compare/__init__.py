"""Compares decoders by replay and by the clock, measures costs, and writes reports.

The name ``specpilot.compare`` is both this package and a function: ``specpilot.compare(…)`` calls :func:`.run.compare`,
and ``from specpilot.compare.results import ComparisonReport`` imports from the package. A function in the package
``specpilot`` could not have this name, since Python replaces the attribute ``specpilot.compare`` by this package when
one of its modules is imported. Therefore the package itself can be called, and both uses work in any order.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..data_gen.rows import RowSource
    from .run import Comparison, Decoders


class _CallablePackage(ModuleType):
    def __call__(self, decoders: Decoders | None = None, prompts: RowSource = "builtin", **options: Any) -> Comparison:
        """Compare decoders on prompts; see :func:`.run.compare`."""
        from .run import compare

        return compare(decoders, prompts, **options)


sys.modules[__name__].__class__ = _CallablePackage
