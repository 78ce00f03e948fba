"""The configuration of a router's policy, with the fingerprints of the target and of every arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..arms import Arm, check_arms, check_enough
from ..router.policy import RouterPolicy
from .config import WIDEST, ControllerConfig, check_range
from .fingerprint import PairFingerprint
from .provenance import EXACT


@dataclass(frozen=True, kw_only=True)
class RouterConfig(ControllerConfig):
    """A router.

    Attributes:
        hidden_size: size d of the embedding, the target's hidden size.
        width: hidden size of the MLP.
        arms: the arms in the order of the outputs.
        reward: ``rouge`` (eq. 2) or ``throughput``.
        alpha: weight of alignment against cost in eq. 2.
        cost: kind of cost: ``parameters`` (A.5) or ``time``.
    """

    kind = "router"
    given_as = "router"
    title = "Router"
    summary = (
        "Chooses how a prompt is decoded, from the target's own embedding of it, which the prefill computes anyway "
        "(Huang et al. 2024, context-aware assistant selection)."
    )

    hidden_size: int
    width: int
    arms: tuple[Arm, ...]
    reward: str
    alpha: float
    cost: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("hidden_size", self.hidden_size, 1, WIDEST)
        check_range("width", self.width, 1, WIDEST)
        check_range("alpha", self.alpha, 0, 1)
        check_enough([arm.name for arm in self.arms])

    def module(self) -> RouterPolicy:
        return RouterPolicy(self.hidden_size, len(self.arms), self.width)

    def usage(self) -> str:
        return f'target="{self.provenance.target}", router="path/to/this/folder"'

    def rows(self) -> dict[str, str]:
        rouge = f"{self.alpha}·ROUGE-L + {1 - self.alpha:g}·cost, by {self.cost} (eq. 2)"
        return {
            "arms, in the order of the outputs": ", ".join(f"`{arm.name}` ({arm.kind})" for arm in self.arms),
            "policy": f"{self.hidden_size} → {self.width} → {self.width} → {len(self.arms)}, tanh",
            "reward": rouge if self.reward == "rouge" else "expected tokens per second by the cost model",
        }

    def check(
        self, target_fingerprint: str, tokenizer_fingerprint: str, arms: Sequence[Arm], pair_check: str = EXACT
    ) -> None:
        """Check that target, tokenizer and arms are those the router was trained for.

        Raises:
            InputError: one of them differs.
        """
        pair = PairFingerprint(target_fingerprint, None, tokenizer_fingerprint)
        self.provenance.check_pair(pair, pair_check)
        if pair_check == EXACT or [arm.kind for arm in self.arms] != [arm.kind for arm in arms]:
            check_arms(self.arms, arms)
