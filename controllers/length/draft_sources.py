"""Selects the source of a round's draft: the text's n-grams, a draft model, or a copy and the model after it.

A round that copies i tokens and lets the model draft after them yields, in expectation, 1 + Σ_{j≤i} s_j + s_i·A tokens,
where s_j is the probability that j copies are accepted, and A the number of accepted tokens of the model's drafts. The
best plan has the largest E[tokens] - λ·seconds, where λ is the rate of tokens per second (:mod:`.rate`). The plan
depends on the text so far only and is made before any token of the round is drawn, so that the distribution of the
output does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .. import MAX_DRAFT
from .cost_based import LONGEST, PROBE
from .cost_model import CostModel
from .rate import RunningRatio, best_continuation, steady_rate

ACCEPTANCE = 0.6  # initial acceptance of a draft model's tokens
DRAFTS = 4.0  # weight of the initial acceptance, in drafts of the model
ROUNDS = 64.0  # memory of the rate and of the model's drafts, in rounds
PRIOR = 8.0  # weight of the initial rate, in rounds


class Plan(NamedTuple):
    """A round's sources.

    Attributes:
        copies: number of copied tokens.
        model: whether the draft model drafts after them.
    """

    copies: int
    model: bool


class DraftSources:
    """Selects the sources of one text's rounds, and learns from the rounds.

    Args:
        cost: the costs of drafting and verifying.
        model: whether there is a draft model.
        joined: whether the draft model can draft after a copy.

    Attributes:
        rate: tokens per second on the text.
        drafted: tokens per draft of the model.
        forwards: forwards of the model per draft.
        accepted: accepted tokens per draft of the model.
        idle: number of rounds since the model drafted.
        patience: number of such rounds before a probe.
    """

    def __init__(self, cost: CostModel, *, model: bool, joined: bool = True) -> None:
        self.cost, self.model, self.joined = cost, model, joined
        rate = steady_rate(ACCEPTANCE, cost)
        self.rate = RunningRatio(rate, PRIOR * cost.round(0), ROUNDS)
        gains = [ACCEPTANCE**k for k in range(1, MAX_DRAFT + 1)]
        paying_gains = gains[: max(1, best_continuation(ACCEPTANCE, ACCEPTANCE, rate, cost).tokens)]
        self.drafted = RunningRatio(len(paying_gains), DRAFTS, ROUNDS)
        self.forwards = RunningRatio(len(paying_gains), DRAFTS, ROUNDS)
        self.accepted = RunningRatio(sum(paying_gains), DRAFTS, ROUNDS)
        self.idle, self.patience = 0, PROBE

    def plan(self, survivals: Iterable[float], max_draft: int = MAX_DRAFT, *, measure: bool = False) -> Plan:
        """Return the sources of a round.

        After ``PROBE`` rounds without the model, the model drafts in a probe, to find out whether it pays again. The
        number of rounds before the next probe doubles.

        Args:
            survivals: the probability that the first 0, 1, … copied tokens are all accepted, for as many tokens as can
                be copied. It is read until a further copy cannot pay.
            max_draft: maximum depth of the model's draft; 0 if the model cannot draft.
            measure: whether the model drafts to measure its costs, even if drafting does not seem to pay.
        """
        rate, cost = self.rate.value, self.cost
        start = rate * cost.t_draft_start
        drafting = start + rate * cost.t_draft * self.forwards.value
        price = drafting + rate * cost.added(0, self.drafted.value)
        may_pay = max_draft > 0 and self.forwards.value > price  # if all tokens were accepted
        probe = self.model and may_pay and self.idle >= self.patience
        if measure and self.model and max_draft > 0 and not probe:
            return Plan(0, True)
        best, most, copied = Plan(0, False), -price if probe else 0.0, 0.0
        for count, survival in enumerate(survivals):
            if count and survival < rate * cost.least_added(count - 1):
                break  # further copies yield less than their price, and lower the yield of the tokens after them
            copied += survival if count else 0.0
            gain = copied - rate * cost.added(0, count)
            if count and gain - start > most and not probe:
                best, most = Plan(count, False), gain - start
            follows = self.model and count < max_draft and (self.joined or not count)
            joint = gain + survival * self.accepted.value - drafting - rate * cost.added(count, self.drafted.value)
            if follows and joint > most:
                best, most = Plan(count, True), joint
        if probe:
            self.patience = min(2 * self.patience, LONGEST)
        elif best.model:
            self.patience = PROBE
        return best

    def follow(self, cost: CostModel, tokens: int, forwards: int) -> None:
        """Use ``cost`` from now on; convert the rate so far by the costs of a round with this draft.

        Args:
            cost: the new cost model.
            tokens: number of drafted tokens.
            forwards: number of forwards of the draft model.
        """
        if cost is not self.cost:
            self.rate.below *= cost.round(tokens, forwards) / self.cost.round(tokens, forwards)
            self.cost = cost

    def end_round(self, copies: int, drafted: int, accepted: int, forwards: int | None = None) -> None:
        """Learn from a round.

        Args:
            copies: number of copied tokens.
            drafted: number of tokens that the model drafted after them.
            accepted: number of accepted tokens.
            forwards: number of forwards of the model; None for one per drafted token.
        """
        forwards = drafted if forwards is None else forwards
        self.rate.add(accepted + 1.0, self.cost.round(copies + drafted, forwards))
        self.idle = 0 if drafted else self.idle + 1
        if drafted:
            self.drafted.add(drafted, 1.0)
            self.forwards.add(forwards, 1.0)
        if drafted and accepted >= copies:
            self.accepted.add(accepted - copies, 1.0)
