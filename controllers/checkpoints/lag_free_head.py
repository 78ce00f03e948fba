"""The configuration of the lag-free head."""

from __future__ import annotations

from dataclasses import dataclass

from ..acceptance.lag_free_head import LagFreeHead
from .config import WIDEST, ControllerConfig, check_range


@dataclass(frozen=True, kw_only=True)
class LagFreeHeadConfig(ControllerConfig):
    """A lag-free head.

    Attributes:
        hidden_size: d of the draft.
        width: hidden units of the head.
        uses_ngrams: whether it reads the evidence of n-gram matches.
        mean: mean acceptance in the training data.
        tokens: drafted tokens it was trained on.
    """

    kind = "lag-free-head"
    title = "Lag-free acceptance head"
    summary = (
        "Predicts, when a token is drawn from the draft model and before the draft reads it, the probability that the "
        "target model accepts it. Its inputs are the draft's last hidden state, the token's embedding, log q(y), "
        "log(1 - max q), and n-gram matches of the text so far. `cost.json` is what `specpilot bench cost --output "
        "cost.json` measures: drafting stops where a token no longer pays."
    )

    hidden_size: int
    width: int
    uses_ngrams: bool
    mean: float
    tokens: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("hidden_size", self.hidden_size, 1, WIDEST)
        check_range("width", self.width, 1, WIDEST)
        check_range("mean", self.mean, 0, 1)

    def module(self) -> LagFreeHead:
        return LagFreeHead(self.hidden_size, self.width)

    def usage(self) -> str:
        return f'{super().usage()}, cost="cost.json"'

    def rows(self) -> dict[str, str]:
        return {
            "hidden units": f"{self.width}",
            "trained on": f"{self.tokens:,} drafted tokens, mean acceptance {self.mean:.3f}",
            "reads n-gram matches": "yes" if self.uses_ngrams else "no",
        }
