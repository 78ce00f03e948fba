"""Which source drafts a round: the text's own n-grams, a draft model, or a copy first and the model after it.

A round that copies i tokens and lets the model draft after them yields, in expectation, 1 + Σ_{j≤i} s_j + s_i·A tokens,
where s_j is the probability that j copies are accepted and A what the model's drafts yield. The best plan is the one of
the largest E[tokens] - λ·seconds, λ the rate of tokens per second (:mod:`.rate`). It is chosen before anything of the
round is drawn, by the text so far alone, so the distribution of the output does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .. import MAX_DRAFT
from .cost_model import CostModel
from .priced import LONGEST, PROBE
from .rate import RunningRatio, steady_rate

ACCEPTANCE = 0.6  # of each of a draft model's tokens, before anything is known
DRAFTS = 4.0  # drafts of the model that this counts for
ROUNDS = 64.0  # memory of the rate and of the model's drafts
PRIOR = 8.0  # rounds that the first rate counts for


class Plan(NamedTuple):
    """A round's sources.

    Attributes:
        copies: how many tokens are copied.
        model: whether the draft model goes on after them.
    """

    copies: int
    model: bool


class DraftSources:
    """The choice for one text, which learns from it.

    Args:
        cost: what drafting and verifying cost.
        model: there is a draft model.
        joined: it can draft after a copy.
    """

    def __init__(self, cost: CostModel, *, model: bool, joined: bool = True) -> None:
        self.cost, self.model, self.joined = cost, model, joined
        rate = steady_rate(ACCEPTANCE, cost)
        self.rate = RunningRatio(rate, PRIOR * cost.round(0), ROUNDS)  # tokens per second
        gains = [ACCEPTANCE**k for k in range(1, MAX_DRAFT + 1)]
        worth = [gain for gain in gains if gain >= rate * cost.per_token] or gains[:1]
        self.drafted = RunningRatio(len(worth), DRAFTS, ROUNDS)  # tokens per draft of the model
        self.forwards = RunningRatio(len(worth), DRAFTS, ROUNDS)  # the model's forwards per draft
        self.accepted = RunningRatio(sum(worth), DRAFTS, ROUNDS)  # of these, tokens kept
        self.idle, self.patience = 0, PROBE  # rounds since the model drafted, and how many there may be

    def plan(self, survivals: Iterable[float], room: int = MAX_DRAFT, *, measure: bool = False) -> Plan:
        """The sources of a round in which the model can draft up to the depth ``room``, 0 if not at all.

        After ``PROBE`` rounds without the model it drafts all the same, to see whether it pays again, and after twice
        as many each time.

        Args:
            survivals: probability that the first 0, 1, … copied tokens are all accepted, as many as can be copied. It
                is read until a further copy cannot pay.
            measure: let the model draft to measure its costs, although that does not seem to pay.
        """
        rate, cost = self.rate.value, self.cost
        start = rate * cost.t_draft_start
        price = start + rate * (cost.t_verify_token * self.drafted.value + cost.t_draft * self.forwards.value)
        may_pay = room > 0 and self.forwards.value > price  # if all were kept
        probe = self.model and may_pay and self.idle >= self.patience
        if measure and self.model and room > 0 and not probe:
            return Plan(0, True)
        best, most, copied = Plan(0, False), -price if probe else 0.0, 0.0
        for count, survival in enumerate(survivals):
            if count and survival < rate * cost.t_verify_token:
                break  # each further copy yields less than its price, and leaves less to what follows it
            copied += survival if count else 0.0
            gain = copied - rate * cost.t_verify_token * count
            if count and gain - start > most and not probe:
                best, most = Plan(count, False), gain - start
            follows = self.model and count < room and (self.joined or not count)
            if follows and gain + survival * self.accepted.value - price > most:
                best, most = Plan(count, True), gain + survival * self.accepted.value - price
        if probe:
            self.patience = min(2 * self.patience, LONGEST)
        elif best.model:
            self.patience = PROBE
        return best

    def follow(self, cost: CostModel, tokens: int, forwards: int) -> None:
        """Use ``cost`` from now on; the rate so far is converted by the costs of such a round."""
        if cost is not self.cost:
            self.rate.below *= cost.round(tokens, forwards) / self.cost.round(tokens, forwards)
            self.cost = cost

    def end_round(self, copies: int, drafted: int, accepted: int, forwards: int | None = None) -> None:
        """The target kept ``accepted`` of ``copies`` copied and then ``drafted`` tokens of the model.

        Args:
            forwards: of the model; None: one for each token that it drafted.
        """
        forwards = drafted if forwards is None else forwards
        self.rate.add(accepted + 1.0, self.cost.round(copies + drafted, forwards))
        self.idle = 0 if drafted else self.idle + 1
        if drafted:
            self.drafted.add(drafted, 1.0)
            self.forwards.add(forwards, 1.0)
        if drafted and accepted >= copies:
            self.accepted.add(accepted - copies, 1.0)
