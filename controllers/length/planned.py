"""Plans the length of drafts before they start, by a length head and costs."""

from __future__ import annotations

from itertools import accumulate

from torch import Tensor

from ..acceptance.length_head import Every, LengthHead, Outcomes, Survivals
from ..acceptance.step import Step
from .cost_model import CostModel
from .priced import TrainedLength


class PlannedLength(TrainedLength):
    """Decides how many tokens to draft, or none, before a round starts, by a length head.

    With survivals s_i the length k gains 1 + Σ_{i≤k} s_i tokens in the time of a round of k. A plan for every round is
    the k of the largest gain at the text's rate λ, tokens - λ·seconds. One for a whole text has the most tokens per
    second.

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

    def see(self, state: Tensor) -> None:
        self.state = state

    def start_round(self) -> bool:
        if self.cost.never_pays and self.running is None:
            return False
        self.begun = True
        if self.plan is None or self.every == "round":
            self.plan = self._best(self.survivals(self.outcomes.rates, self.state))
        return self._begin_draft(pays=self.plan > 0, may_pay=True)

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

    def _best(self, survivals: list[float]) -> int:
        """The number of tokens to draft."""
        tokens, cost = [*accumulate(survivals, initial=1.0)], self.cost
        if self.every == "prompt":
            return max(range(len(tokens)), key=lambda k: tokens[k] / cost.round(k))
        return max(range(len(tokens)), key=lambda k: tokens[k] - self.rate.value * cost.round(k))
