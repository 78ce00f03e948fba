"""The configuration of SpecDec++'s acceptance head (Huang et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...common.errors import InputError
from ..acceptance.acceptance_head import AcceptanceHead
from .config import WIDEST, ControllerConfig, check_range

MAX_DEPTH = 64  # protects against a damaged config.json


@dataclass(frozen=True, kw_only=True)
class AcceptanceHeadConfig(ControllerConfig):
    """An acceptance head.

    Attributes:
        hidden_size: the draft's hidden size d.
        depth: residual blocks D.
        w_acc: loss weight of acceptance.
        w_rej: loss weight of rejection.
        mixing: share of target tokens in the training sequences.
        threshold: stop drafting when the probability of a rejection so far exceeds it.
        threshold_source: description of how the threshold was chosen.
    """

    kind = "acceptance-head"
    title = "Acceptance head"
    summary = (
        "Reads the last hidden state of the draft model at a token it has drafted, and predicts the probability that "
        "the target model accepts that token (SpecDec++, Huang et al. 2024). Drafting stops when the probability "
        "that some token of the draft is rejected exceeds the threshold."
    )

    hidden_size: int
    depth: int
    w_acc: float
    w_rej: float
    mixing: float
    threshold: float
    threshold_source: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("hidden_size", self.hidden_size, 1, WIDEST)
        check_range("depth", self.depth, 0, MAX_DEPTH)
        check_range("threshold", self.threshold, 0, 1)
        check_range("mixing", self.mixing, 0, 1)
        for name, weight in (("w_acc", self.w_acc), ("w_rej", self.w_rej)):
            if not (weight > 0 and math.isfinite(weight)):
                raise InputError(f"{name}={weight}: must be a positive number")

    def module(self) -> AcceptanceHead:
        return AcceptanceHead(self.hidden_size, self.depth)

    def rows(self) -> dict[str, str]:
        return {
            "head": f"{self.depth} residual blocks of size {self.hidden_size} and a linear layer",
            "loss weights": f"acceptance {self.w_acc}, rejection {self.w_rej}",
            "target tokens mixed in": f"{self.mixing:.0%}",
            "threshold": f"{self.threshold} ({self.threshold_source})",
        }
