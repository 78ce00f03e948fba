"""The policy of assistant selection (Huang et al. 2024, §3.1): three linear layers, hidden size 512, tanh, softmax.

Shapes: embedding x (…, d) → logits (…, A), one for each arm.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...common.errors import InputError
from ..acceptance.training import DataSummary, Origin
from ..arms import Arm, check_arms, check_enough
from ..checkpoints.config import WIDEST, ControllerConfig, check_range
from ..checkpoints.fingerprint import PairFingerprint
from ..checkpoints.provenance import EXACT, differ_in_acceptance
from ..sampling import SamplingParams
from ..training_options import RouterTrainingOptions
from .base import Router, one_hot

WIDTH = 512


@dataclass(frozen=True, kw_only=True)
class Config(ControllerConfig):
    """The configuration of a router.

    Attributes:
        hidden_size: size d of the embedding, the target's hidden size.
        width: hidden size of the MLP.
        arms: the arms in the order of the outputs.
        reward: ``rouge`` (eq. 2) or ``throughput``.
        alpha: weight of alignment against cost in eq. 2.
        cost: kind of cost: ``parameters`` (A.5) or ``time``.
    """

    kind = "router"
    option = "router"
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

    @property
    def verifier(self) -> str | None:
        """The verification rule that the rewards are computed for; None if the reward does not depend on a rule."""
        return self.provenance.verifier if self.reward == "throughput" else None

    def module(self) -> RouterPolicy:
        return RouterPolicy(self.hidden_size, len(self.arms), self.width)

    def usage(self) -> str:
        return f'target="{self.provenance.target}", router="path/to/this/folder"'

    def rows(self) -> dict[str, str]:
        rouge = f"{self.alpha}·ROUGE-L + {1 - self.alpha:g}·cost, by {self.cost} (eq. 2)"
        return {
            "arms, in the order of the outputs": ", ".join(f"`{arm.name}` ({arm.kind})" for arm in self.arms),
            "policy": f"{self.hidden_size} → {self.width} → {self.width} → {len(self.arms)}, tanh",
            "reward": rouge if self.reward == "rouge" else "expected speed-up by the cost model",
        }

    def check(
        self, target_fingerprint: str, tokenizer_fingerprint: str, arms: Sequence[Arm], pair_check: str = EXACT
    ) -> None:
        """Check that target, tokenizer and arms are those that the router was trained for.

        Args:
            target_fingerprint, tokenizer_fingerprint: fingerprints of the decoder's target and tokenizer.
            arms: the decoder's arms.
            pair_check: as for :meth:`~..checkpoints.provenance.Provenance.check_pair`.

        Raises:
            InputError: the target, the tokenizer, an arm or the order of the arms differs.
        """
        pair = PairFingerprint(target_fingerprint, None, tokenizer_fingerprint)
        self.provenance.check_pair(pair, pair_check)
        if pair_check == EXACT or [arm.kind for arm in self.arms] != [arm.kind for arm in arms]:
            check_arms(self.arms, arms)


class RouterPolicy(nn.Module):
    """The policy π(·|x) = softmax(MLP(x)) over A = ``arms`` arms, for a prompt's embedding x (``hidden_size``,).

    Raises:
        InputError: a size is too small.
    """

    def __init__(self, hidden_size: int, arms: int, width: int = WIDTH) -> None:
        super().__init__()
        for name, value, least in (("hidden_size", hidden_size, 1), ("arms", arms, 2), ("width", width, 1)):
            if value < least:
                raise InputError(f"{name}={value}: must be at least {least}")
        self.hidden_size, self.arms, self.width = hidden_size, arms, width
        self.first = nn.Linear(hidden_size, width)
        self.second = nn.Linear(width, width)
        self.out = nn.Linear(width, arms)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (…, A) for embeddings (…, d)."""
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        logits: Tensor = self.out(hidden)
        return logits

    @torch.no_grad()
    def absorb(self, scale: Tensor) -> None:
        """Fold ``scale`` (d,) into the first layer, which was trained on ``x / scale``, so that its input is ``x``."""
        self.first.weight.div_(scale)


def to_checkpoint(options: RouterTrainingOptions, data: DataSummary, origin: Origin) -> Config:
    """Return the configuration of a trained router."""
    return Config(
        **vars(origin), hidden_size=data.hidden_size, width=options.width, arms=data.arms, reward=options.reward,
        alpha=options.alpha, cost=options.cost,
    )  # fmt: skip


class PolicyRouter(Router):
    """Chooses the most probable arm of a policy.

    Args:
        policy: the policy.
        sample: whether the arm is drawn from the policy instead.
        sampling: sampling parameters of the training data, if known.
        verifier: see :attr:`Config.verifier`.
    """

    def __init__(
        self,
        policy: RouterPolicy,
        *,
        sample: bool = False,
        sampling: SamplingParams | None = None,
        verifier: str | None = None,
    ) -> None:
        self.policy, self.sample, self.sampling, self.arms = policy.eval(), sample, sampling, policy.arms
        self.verifier = verifier

    def check_sampling(self, sampling: SamplingParams) -> None:
        if self.sampling is not None and not sampling.is_equivalent(self.sampling):
            warnings.warn(
                f"the router was trained under {self.sampling}, decoding uses {sampling}: the output stays exact, "
                "but another arm may be faster",
                stacklevel=2,
            )

    def check_verifier(self, verifier: str) -> None:
        if differ_in_acceptance(self.verifier, verifier):
            warnings.warn(
                f"the router was trained for the verification rule {self.verifier}, decoding uses {verifier}: the "
                "output stays exact, but another arm may be faster",
                stacklevel=2,
            )

    def probabilities(self, embedding: Tensor) -> list[float]:
        """Return π(·|x) for one embedding (d,)."""
        with torch.inference_mode():
            logits = self.policy(embedding.to(self.policy.out.weight))
            result: list[float] = logits.cpu().double().softmax(-1).tolist()
        return result

    def weigh(self, embedding: Tensor) -> list[float]:
        probabilities = self.probabilities(embedding)
        return probabilities if self.sample else one_hot(probabilities.index(max(probabilities)), self.arms)
