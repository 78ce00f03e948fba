"""The options of ``python -m experiments external``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ExternalOptions:
    """Measurement.

    Attributes:
        guidellm: Program of guidellm, in an environment of its own.
        loads: Numbers of requests at once.
        requests: Requests of each measurement.
        max_new_tokens: Maximum number of new tokens of each.
        result: File of `bench serve`, to which the measurement is added under the key external.
    """

    guidellm: Path
    loads: tuple[int, ...] = (1, 4, 16, 64)
    requests: int = 64
    max_new_tokens: int = 64
    result: Path = Path("docs/results/serve.json")
