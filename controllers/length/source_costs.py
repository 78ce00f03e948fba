"""A cost model fitted to the wall times of rounds that copy tokens, draft them with a model, or both."""

from __future__ import annotations

from dataclasses import replace

from .cost_model import CostModel
from .running_cost import RunningCost


class SourceCosts:
    """A cost model that adapts to measured times, of the copied and of the drafted tokens.

    A round of i copied and then j drafted tokens takes fixed + b·i + (t_draft + b)·j seconds. Rounds without the model
    determine the first line, rounds without copies the second (:mod:`.running_cost`); of a round with both, each line
    gets what the other leaves of its time.

    Args:
        first: the initial cost model.
        adapt: correct it; otherwise ``cost`` stays ``first``.
    """

    def __init__(self, first: CostModel, *, adapt: bool) -> None:
        self.cost = first
        self.copying = RunningCost(replace(first, t_draft=0.0)) if adapt else None
        self.drafting = RunningCost(first) if adapt else None

    def add(self, copied: int, drafted: int, seconds: float) -> None:
        """Add the time of a round."""
        if self.copying is None or self.drafting is None:
            return
        copies, drafts = self.copying.cost, self.drafting.cost
        if copied or not drafted:
            self.copying.add(copied, max(0.0, seconds - drafts.per_token * drafted))
        if drafted or not copied:
            self.drafting.add(drafted, max(0.0, seconds - copies.per_token * copied))
        if (self.copying.cost, self.drafting.cost) != (copies, drafts):
            self.cost = _joined(self.copying.cost, self.drafting.cost)


def _joined(copying: CostModel, drafting: CostModel) -> CostModel:
    """The cost model with the lines of rounds that copy and of rounds that draft."""
    alone = copying.round(0)
    per_copy = min(copying.per_token, alone)
    return CostModel(max(0.0, drafting.per_token - per_copy), alone - per_copy, per_copy, copying.t_draft_start)
