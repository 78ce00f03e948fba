"""Compares decoders by replay and by the clock, measures costs, and writes reports.

The name ``specpilot.compare`` is both this package and a function: ``specpilot.compare(…)`` calls :func:`.run.compare`,
and ``from specpilot.compare.results import ComparisonReport`` imports from the package.
"""

from ..common.callable_package import make_callable

make_callable(__name__, "run")
