"""Where a length controller has its probabilities from: how likely is it that the target keeps a drafted token?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from ..sampling import SamplingParams
from .base import Step


class Judged(NamedTuple):
    """Chances that the target keeps a token, and the token drafted after it; each given that it keeps all before.

    Attributes:
        kept: of the newest token that can be judged.
        then: of the token after the one in hand, which is not drafted yet; None where the source does not look ahead.
    """

    kept: float
    then: float | None = None


class AcceptanceSource(ABC):
    """Judges drafted tokens one by one. Nothing is remembered between calls: rows of a batch share one source.

    Attributes:
        late: how many of the newest tokens it cannot judge yet, 0 or 1.
        mean: mean acceptance in the data it was fitted to.
    """

    late: int
    mean: float

    def check_warp(self, warp: SamplingParams) -> None:  # noqa: B027 — not every source was trained
        """Called with the warp of every generation; warns if the source was fitted under another."""

    @abstractmethod
    def judge(self, step: Step) -> Judged:
        """Judge the newest token that can be judged.

        That token is the one in hand, or the one before it if ``late`` is 1. Not called before there is one.
        """
