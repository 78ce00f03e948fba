"""Settings of the results, without slow imports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ResultsOptions:
    """Results.

    Attributes:
        output: Working folder; each commit has a folder in it, in which an interrupted run is continued.
        publish: Folder that the results are copied to; the documentation shows those in docs/results.
        only: Names of steps, which are run with the steps that they need.
        plan: Print the steps and which are done; run nothing.
    """

    output: Path = Path("runs/results")
    publish: Path = Path("docs/results")
    only: tuple[str, ...] | None = None
    plan: bool = False
