"""BlockPilot's length head, which predicts before a draft starts how many drafted tokens the target will accept.

BlockPilot (Zhang et al. 2026, arXiv 2606.31315) chooses the block size of a diffusion draft once for each prompt, with
an MLP that reads the target's prefill representation. The MLP is a classifier of the block size that was best for a
sample in offline runs. The head in this file differs in three points:

* It predicts survivals: s_k is the probability that the first k drafted tokens are all accepted. Costs then choose the
  length, so one head serves all costs and numbers of requests.
* It reads the target's hidden state from which the newest token was drawn, and the outcomes of the last rounds.
* With ``every="round"`` it plans the length of every round. With ``every="prompt"`` it plans one length for each
  prompt, as BlockPilot does.

A round with k drafted tokens yields 1 + Σ_{i≤k} s_i tokens in expectation. The plan of a round is the k with the
largest value of tokens - λ·seconds, where λ is the text's rate in tokens per second. The plan of a prompt is the k with
the most tokens per second.

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

MEMORIES = (4.0, 32.0)  # memories of the running shares of accepted tokens, in verified tokens
INITIAL_RATE = 0.5  # the running shares before any token is verified
Every = Literal["prompt", "round"]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(PredictorTrainingOptions):
    """Length head. The learning rate is the highest of a one-cycle schedule of AdamW.

    Options of the training of the length head, by ``specpilot train acceptance --predictor``.

    Attributes:
        every: Time of the choice of a draft length: once for each prompt, as in BlockPilot, or in every round.
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
    """The configuration of a length head.

    A length head has no threshold, so decoding with it needs costs.

    Attributes:
        hidden_size: size d of the target's last hidden state.
        width: number of hidden units.
        every: frequency of the plans: ``"prompt"`` or ``"round"``.
        mean: mean acceptance probability in the training data.
        rounds: number of rounds in the training data.
    """

    kind = "length-head"
    title = "Length head"
    summary = (
        "Chooses the length of a draft before the draft starts (after BlockPilot, Zhang et al. 2026). The head reads "
        "the target's last hidden state and the acceptance of the last rounds' tokens. It predicts the number of "
        "drafted tokens that are accepted. Costs then choose the length. The command `specpilot bench cost --output "
        "cost.json` measures the costs and writes `cost.json`."
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
            "hidden units": f"{self.width}", "plans a length": f"once for each {self.every}",
            "trained on": f"{self.rounds:,} rounds, mean acceptance {self.mean:.3f}",
        }  # fmt: skip


class LengthHead(TokenHead):
    """A :class:`.TokenHead` ℝ^(2 + d) → ℝ^10 that predicts the acceptance of 10 drafted tokens.

    Args:
        hidden_size: size d of the target's last hidden state.
        width: number of hidden units.
    """

    def __init__(self, hidden_size: int, width: int = 64) -> None:
        super().__init__(len(MEMORIES), 1, hidden_size, width, ROUND_TOKENS)

    def forward(self, rates: Tensor, state: Tensor) -> Tensor:
        """Return the logits (…, 10) that the k-th drafted token is accepted if all drafted tokens before it are.

        Args:
            rates: (…, 2) the running shares of accepted tokens, see :class:`Outcomes`.
            state: (…, d) the target's last hidden state from which the text's newest token was drawn.
        """
        return self.logit(rates, normalised(state), None)


class Outcomes:
    """The outcomes of a text's drafted tokens so far.

    Attributes:
        rates: running shares of accepted tokens among the verified tokens, one share for each of ``MEMORIES``.
    """

    def __init__(self) -> None:
        self.rates = [INITIAL_RATE] * len(MEMORIES)

    def add(self, accepted: bool) -> None:
        """Add the outcome of a token that was verified, because all earlier tokens of its draft were accepted."""
        pairs = zip(self.rates, MEMORIES, strict=True)
        self.rates = [rate + (accepted - rate) / memory for rate, memory in pairs]


def new_network(options: TrainingOptions, data: DataSummary, parts: Parts) -> LengthHead:
    """Return a head whose first predictions are the mean acceptance of the training data."""
    head = LengthHead(data.hidden_size, options.width)
    nn.init.constant_(head.out.bias, float(torch.logit(torch.tensor(data.mean_acceptance), eps=1e-6)))
    return head


def outcome_rates(places: Tensor, outcomes: Tensor) -> Tensor:
    """Return the rates (M, 2) of :class:`Outcomes` before each round, as if all earlier drafts had one token.

    Args:
        places: (M,) number of tokens of the text before each round, from 1, text by text.
        outcomes: (M, 10) outcomes of the drafted tokens.
    """
    text_outcomes, rates = Outcomes(), []
    for place, outcome in zip(places.tolist(), outcomes[:, 0].tolist(), strict=True):
        text_outcomes = Outcomes() if place == 1 else text_outcomes
        rates.append(text_outcomes.rates)
        text_outcomes.add(outcome == ACCEPTED)
    return torch.tensor(rates).reshape(len(places), len(MEMORIES))


def inputs(examples: Examples, options: TrainingOptions) -> tuple[Tensor, ...]:
    """Return the rates (M, 2) and the target's states (M, d) of M rounds.

    With ``every="prompt"`` all rounds of a text have the inputs of its first round.
    """
    rates, states = outcome_rates(examples.places, examples.kept), examples.states
    if options.every == "round":
        return rates, states
    is_first = examples.places == 1
    text_index = is_first.cumsum(0) - 1
    return rates[is_first][text_index], states[is_first][text_index]


def decided(outcomes: Tensor) -> Tensor:
    """Return a mask (M, 10) of the drafted tokens that the target decides on.

    The target decides on a token if all tokens before it are accepted.

    Args:
        outcomes: (M, 10) outcomes of the drafted tokens.
    """
    first = torch.ones_like(outcomes[:, :1], dtype=torch.bool)
    return (outcomes != NOT_DRAFTED) & torch.cat([first, outcomes[:, :-1] == ACCEPTED], 1)


def loss(network: LengthHead, batch: Batch, options: TrainingOptions) -> tuple[Tensor, Tensor]:
    """Return the sum of the binary cross-entropies of the drafted tokens that the target decides on, and their number.

    With this loss, the product of the first k predicted probabilities estimates the survival s_k.
    """
    labels, predicted = predictions(network, batch, options)
    return cross_entropy(predicted["head"], labels)


def predictions(network: LengthHead, batch: Batch, options: TrainingOptions) -> tuple[Tensor, dict[str, Tensor]]:
    """Return labels and logits of the drafted tokens that the target decides on."""
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
    """Computes a length head's predictions for one round with NumPy on the host, faster than with tensors."""

    def __init__(self, head: LengthHead) -> None:
        parameters = head.inner.weight, head.inner.bias, head.out.weight, head.out.bias
        self.hidden_weight, self.hidden_bias, self.output_weight, self.output_bias = (
            parameter.detach().cpu().numpy() for parameter in parameters
        )

    def __call__(self, rates: list[float], state: Tensor) -> list[float]:
        """Return the survivals s_1, …, s_10: s_k is the probability that the first k drafted tokens are all accepted.

        Args:
            rates: the two running shares of accepted tokens, see :class:`Outcomes`.
            state: (d,) the target's last hidden state from which the text's newest token was drawn.
        """
        raw_state = state.float().cpu().numpy()
        normalised_state = (raw_state - raw_state.mean()) / np.sqrt(raw_state.var() + EPSILON)
        inputs = np.concatenate([np.array(rates, np.float32), normalised_state])
        hidden = np.maximum(self.hidden_weight @ inputs + self.hidden_bias, 0.0)
        logits = self.output_weight @ hidden + self.output_bias
        probabilities = 1.0 / (1.0 + np.exp(-logits))
        return np.cumprod(probabilities).tolist()  # type: ignore[no-any-return]


class PlannedLength(TrainedLength):
    """Plans the number of drafted tokens before a round starts, with a length head and costs. The number may be 0.

    Args:
        head: predicts the survivals.
        every: frequency of the plans: ``"prompt"`` or ``"round"``.
        mean, cost: as for :class:`.TrainedLength`.

    Attributes:
        state: (d,) the target's last hidden state from which the newest token was drawn.
        outcomes: the outcomes of the text's drafted tokens.
        plan: number of tokens to draft; None before the first round of a text.
    """

    reads_target = True
    state: Tensor

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
        """Return the number of tokens to draft.

        Args:
            survivals: s_1, s_2, …
        """
        tokens = [*accumulate(survivals, initial=1.0)]  # expected tokens of a round by the number of drafted tokens
        cost = self.cost
        if self.every == "prompt":
            return max(range(len(tokens)), key=lambda k: tokens[k] / cost.round(k))
        return max(range(len(tokens)), key=lambda k: tokens[k] - self.rate.value * cost.round(k))
