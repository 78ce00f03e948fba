"""BlockPilot's length head: how many drafted tokens the target will accept, before the draft starts.

BlockPilot (Zhang et al. 2026, arXiv 2606.31315) has an MLP that reads the target's prefill representation and chooses
the block size of a diffusion draft, once a prompt: a classifier of each sample's best block size in offline runs. Here
the head predicts survival by position, P(the first k drafted tokens are accepted), and costs choose the length, so that
one head serves all costs and numbers of requests. It reads the target's state that the newest token was drawn from, and
the outcomes of the last rounds. ``every`` is when it is asked: once a ``prompt``, as BlockPilot, or every ``round``.

With survivals s_i the length k gains 1 + Σ_{i≤k} s_i tokens in the time of a round of k. A plan for every round is the
k of the largest gain at the text's rate λ, tokens - λ·seconds. One for a whole text has the most tokens per second.

```bash
specpilot train acceptance --predictor experiments.rivals.block_pilot:Config --data DATA --output RUN
specpilot export RUN FOLDER --predictor experiments.rivals.block_pilot:Config
specpilot generate PROMPT --length experiments.rivals.block_pilot:Config:FOLDER --cost auto
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from specpilot.common.errors import InputError
from specpilot.common.options import Count, LearningRate, NotNegative
from specpilot.controllers.acceptance.metrics import Metrics
from specpilot.controllers.acceptance.step import Step
from specpilot.controllers.acceptance.token_head import EPSILON, TokenHead, check_sizes, normalised
from specpilot.controllers.acceptance.training import (
    ACCEPTED,
    NOT_DRAFTED,
    ROUND_TOKENS,
    Batch,
    DataSummary,
    Examples,
    Origin,
    Parts,
    cross_entropy,
    network_logits,
)
from specpilot.controllers.checkpoints.config import ControllerConfig, check_range
from specpilot.controllers.length import TrainedLength
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.training_options import ROUNDS, Predictor, PredictorTrainingOptions
from torch import Tensor, nn

MEMORIES = (4.0, 32.0)  # of the shares of accepted tokens, in verified tokens
UNKNOWN = 0.5  # these shares before anything is verified
Every = Literal["prompt", "round"]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(PredictorTrainingOptions):
    """Length head. The learning rate is the highest of a one-cycle schedule of AdamW.

    Attributes:
        every: When it plans a draft's length: once a prompt, as BlockPilot, or every round.
        width: Hidden units of the head.
    """

    context = ROUNDS
    by_text = True

    predictor: Predictor = f"{__name__}:Config"
    every: Every = "round"
    width: Count = 64
    epochs: Count = 4
    lr: LearningRate = 2e-3
    weight_decay: NotNegative = 0.05


@dataclass(frozen=True, kw_only=True)
class Config(ControllerConfig):
    """A length head, which needs costs: it predicts the acceptance of no token.

    Attributes:
        hidden_size: size d of the target's last hidden state.
        width: hidden units of the head.
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

    hidden_size: int
    width: int
    every: Every
    mean: float
    rounds: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self.hidden_size, self.width)
        check_range("mean", self.mean, 0, 1)

    def module(self) -> LengthHead:
        return LengthHead(self.hidden_size, self.width)

    def length_controller(self, head: nn.Module, cost: CostModel | None) -> PlannedLength:
        assert isinstance(head, LengthHead)
        if cost is None:
            raise InputError("has no threshold of its own; give costs: --cost auto, or --cost FILE")
        return PlannedLength(head, self.every, self.mean, cost)

    def rows(self) -> dict[str, str]:
        return {
            "hidden units": f"{self.width}", "asked": f"once a {self.every}",
            "trained on": f"{self.rounds:,} rounds, mean acceptance {self.mean:.3f}",
        }  # fmt: skip


class LengthHead(TokenHead):
    """A :class:`.TokenHead` ℝ^(2 + d) → ℝ^10, with d of the target's last hidden state."""

    def __init__(self, hidden_size: int, width: int = 64) -> None:
        super().__init__(len(MEMORIES), 1, hidden_size, width, ROUND_TOKENS)

    def forward(self, rates: Tensor, state: Tensor) -> Tensor:
        """Logits (…, 10) that the k-th drafted token is accepted if those before it are.

        Args:
            rates: (…, 2) of :class:`Outcomes`.
            state: (…, d) the target's last hidden state that the text's newest token was drawn from.
        """
        return self.logit(rates, normalised(state), None)


class Outcomes:
    """The outcomes of a text's drafted tokens so far.

    Attributes:
        rates: running shares of accepted tokens among verified ones, one for each of ``MEMORIES``.
    """

    def __init__(self) -> None:
        self.rates = [UNKNOWN] * len(MEMORIES)

    def add(self, accepted: bool) -> None:
        """Add a token that was verified after all earlier ones of its draft were accepted."""
        pairs = zip(self.rates, MEMORIES, strict=True)
        self.rates = [rate + (accepted - rate) / memory for rate, memory in pairs]


def new_network(options: TrainingOptions, data: DataSummary, parts: Parts) -> LengthHead:
    """A head that begins with the mean acceptance."""
    head = LengthHead(data.hidden_size, options.width)
    nn.init.constant_(head.out.bias, float(torch.logit(torch.tensor(data.mean_acceptance), eps=1e-6)))
    return head


def outcome_rates(places: Tensor, kept: Tensor) -> Tensor:
    """(M, 2) the rates of :class:`Outcomes` before each round, where every token before was drafted alone.

    Args:
        places: (M,) the rounds' places in their texts, text by text; 1 begins a text.
        kept: (M, 10) outcomes of the drafted tokens.
    """
    outcomes, rates = Outcomes(), []
    for place, outcome in zip(places.tolist(), kept[:, 0].tolist(), strict=True):
        outcomes = Outcomes() if place == 1 else outcomes
        rates.append(outcomes.rates)
        outcomes.add(outcome == ACCEPTED)
    return torch.tensor(rates).reshape(len(places), len(MEMORIES))


def inputs(examples: Examples, options: TrainingOptions) -> tuple[Tensor, ...]:
    """Rates and states of whole texts; a plan for a prompt is made by what is known before the text's first round."""
    rates, states = outcome_rates(examples.places, examples.kept), examples.states
    if options.every == "round":
        return rates, states
    begins = examples.places == 1
    text = begins.cumsum(0) - 1
    return rates[begins][text], states[begins][text]


def decided(kept: Tensor) -> Tensor:
    """(M, 10) which drafted tokens the target decides on: those before which all were accepted."""
    first = torch.ones_like(kept[:, :1], dtype=torch.bool)
    return (kept != NOT_DRAFTED) & torch.cat([first, kept[:, :-1] == ACCEPTED], 1)


def loss(network: LengthHead, batch: Batch, options: TrainingOptions) -> tuple[Tensor, Tensor]:
    """Binary cross-entropy of each drafted token that the target decides on.

    So Π of the predicted probabilities is fitted to how often the first k tokens of a draft are all accepted.
    """
    labels, predicted = predictions(network, batch, options)
    return cross_entropy(predicted["head"], labels)


def predictions(network: LengthHead, batch: Batch, options: TrainingOptions) -> tuple[Tensor, dict[str, Tensor]]:
    """Of the tokens that the target decides on."""
    is_decided = decided(batch.labels)
    return batch.labels[is_decided].float(), {"head": network_logits(network, batch)[is_decided]}


def metrics(judged: Mapping[str, Metrics], options: TrainingOptions) -> dict[str, float]:
    return judged["head"].compute()


def to_checkpoint(options: TrainingOptions, data: DataSummary, origin: Origin) -> Config:
    return Config(
        **vars(origin), hidden_size=data.hidden_size, width=options.width, every=options.every,
        mean=data.mean_acceptance, rounds=data.examples,
    )  # fmt: skip


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


class PlannedLength(TrainedLength):
    """Decides how many tokens to draft, or none, before a round starts, by a length head and costs.

    Args:
        head: predicts survivals.
        every: when the plan is made.
        mean, cost: as for :class:`.TrainedLength`.
    """

    reads_target = True
    state: Tensor  # (d,) that the newest token was drawn from

    def __init__(self, head: LengthHead, every: Every, mean: float, cost: CostModel) -> None:
        self.survivals, self.every = Survivals(head), every
        super().__init__(mean, cost)

    def start_text(self) -> None:
        super().start_text()
        self.outcomes = Outcomes()
        self.plan: int | None = None

    def read_target(self, state: Tensor) -> None:
        self.state = state

    def start_round(self) -> bool:
        if self.cost.never_pays and self.running is None:
            return False
        self.begun = True
        if self.plan is None or self.every == "round":
            self.plan = self.best_length(self.survivals(self.outcomes.rates, self.state))
        return self.begin_draft(pays=self.plan > 0, may_pay=True)

    @property
    def planned(self) -> int | None:
        return self.plan

    def observe(self, step: Step) -> bool:
        assert self.plan is not None, "the round was started"
        return step.index < self.plan

    def end_round(self, drafted: int, accepted: int) -> None:
        super().end_round(drafted, accepted)
        for position in range(1, min(drafted, accepted + 1) + 1):  # up to the first rejected token
            self.outcomes.add(position <= accepted)

    def best_length(self, survivals: list[float]) -> int:
        """The number of tokens to draft."""
        tokens, cost = [*accumulate(survivals, initial=1.0)], self.cost
        if self.every == "prompt":
            return max(range(len(tokens)), key=lambda k: tokens[k] / cost.round(k))
        return max(range(len(tokens)), key=lambda k: tokens[k] - self.rate.value * cost.round(k))
