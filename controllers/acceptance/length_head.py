"""The length head: how many drafted tokens the target will accept, before the draft starts.

BlockPilot (Zhang et al. 2026, arXiv 2606.31315) has an MLP that reads the target's prefill representation and chooses
the block size of a diffusion draft, once a prompt: a classifier of each sample's best block size in offline runs. Here
the head predicts survival by position, P(the first k drafted tokens are accepted), and costs choose the length
(:mod:`..length.planned`), so that one head serves all costs and numbers of requests. It reads the target's state
that the newest token was drawn from, and how the last rounds' tokens fared. ``every`` says when it is asked: once a
``prompt``, as BlockPilot, or every ``round``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from ..checkpoints.config import check_range
from .predictor import LengthConfig
from .token_head import EPSILON, TokenHead, TokenHeadConfig, normalised

HORIZON = 10  # longest draft that is planned
MEMORIES = (4.0, 32.0)  # of the shares of accepted tokens, in verified tokens
UNKNOWN = 0.5  # these shares before anything is verified
Every = Literal["prompt", "round"]


class Outcomes:
    """How a text's drafted tokens fared.

    Attributes:
        rates: running shares of accepted tokens among verified ones, one for each of ``MEMORIES``.
    """

    def __init__(self) -> None:
        self.rates = [UNKNOWN] * len(MEMORIES)

    def add(self, accepted: bool) -> None:
        """Add a token that was verified after all earlier ones of its draft were accepted."""
        pairs = zip(self.rates, MEMORIES, strict=True)
        self.rates = [rate + (accepted - rate) / memory for rate, memory in pairs]


class LengthHead(TokenHead):
    """A :class:`.TokenHead` ℝ^(2 + d) → ℝ^10, with d of the target's last hidden state."""

    def __init__(self, hidden_size: int, width: int = 64) -> None:
        super().__init__(len(MEMORIES), 1, hidden_size, width, HORIZON)

    def forward(self, rates: Tensor, state: Tensor) -> Tensor:
        """Logits (…, 10) that the k-th drafted token is accepted if those before it are.

        Args:
            rates: (…, 2) of :class:`Outcomes`.
            state: (…, d) the target's last hidden state that the text's newest token was drawn from.
        """
        return self.logit(rates, normalised(state), None)


class Survivals:
    """A length head's predictions in NumPy on the host: for one round that takes a fraction of the time of tensors."""

    def __init__(self, head: LengthHead) -> None:
        layers = head.inner.weight, head.inner.bias, head.out.weight, head.out.bias
        self.inner, self.bias, self.out, self.level = (part.detach().cpu().numpy() for part in layers)

    def __call__(self, rates: list[float], state: Tensor) -> list[float]:
        """(10,) probability that the first 1, 2, … drafted tokens are all accepted, for one ``state`` (d,)."""
        x = state.float().cpu().numpy()
        x = (x - x.mean()) / np.sqrt(x.var() + EPSILON)
        units = self.inner @ np.concatenate([np.array(rates, np.float32), x]) + self.bias
        logits = self.out @ np.maximum(units, 0.0) + self.level
        return np.cumprod(1.0 / (1.0 + np.exp(-logits))).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class LengthHeadConfig(TokenHeadConfig, LengthConfig):
    """A length head, which goes by costs alone: it predicts the acceptance of no token.

    Attributes:
        every: when it is asked.
        mean: mean acceptance in the training data.
        rounds: rounds it was trained on.
    """

    kind = "length-head"
    title = "Length head"
    summary = (
        "Chooses the length of a draft before the draft starts: from the target's last hidden state and how the last "
        "rounds' tokens fared it predicts how many drafted tokens are accepted, and costs decide (after BlockPilot, "
        "Zhang et al. 2026). `cost.json` is what `specpilot bench cost --output cost.json` measures."
    )

    every: Every
    mean: float
    rounds: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mean", self.mean, 0, 1)

    def module(self) -> LengthHead:
        return LengthHead(self.hidden_size, self.width)

    def rows(self) -> dict[str, str]:
        return {
            "hidden units": f"{self.width}", "asked": f"once a {self.every}",
            "trained on": f"{self.rounds:,} rounds, mean acceptance {self.mean:.3f}",
        }  # fmt: skip
