"""Options of the fault campaign (tests/soak)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specpilot.common.options import Count, Folder, SeedOptions, Several
from specpilot.compare.options import ServedOptions, StudyFolderOptions


@dataclass(frozen=True, kw_only=True)
class SoakOptions(ServedOptions):
    """Benchmark.

    Attributes:
        requests: How many there are altogether.
    """

    requests: Count = 10_000
    max_new_tokens: Count = 24


@dataclass(frozen=True, kw_only=True)
class FaultsOptions(SeedOptions, StudyFolderOptions):
    """Campaign.

    Attributes:
        kills: Times that each stage is killed.
        requests: Requests through one decoder, and through one server.
        stages: Names of the stages, such as "[data acceptance,serve]". Default: all.
        jobs: Stages that run side by side. Default: one for each core.
    """

    kills: Count = 50
    requests: Count = 10_000
    stages: Annotated[tuple[str, ...] | None, Several()] = None
    jobs: Count | None = None
    folder: Folder = Path("runs/faults")
