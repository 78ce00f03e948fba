"""Rate-optimal trees: rate-optimal stopping (:mod:`.rate_optimal`), generalised to width.

Let π(v) be the predicted probability that node v of a draft tree is accepted. A round with the tree yields 1 + Σ π(v)
tokens in expectation, and π never increases from a node to its children. For a rate λ and a cost c of each node, the
best tree is therefore {v : π(v) ≥ λ·c}: nodes are added best first while the next node is worth its price. The nodes of
a level share the cost of drafting, because one forward of the draft reads all nodes of a level that get children. A
level is drafted if its nodes' gains exceed their own prices by at least the cost of the forward. With one child for
each node this is the stopping rule of a chain. If no second child is worth its price, the tree is this chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..acceptance.calibration import sigmoid
from ..acceptance.predictor import AcceptancePredictor
from ..acceptance.step import Step
from .cost_model import BatchCosts, CostModel, level_cost, read_cost, tree_cost
from .priced import PRIOR
from .rate import RunningRatio
from .rate_optimal import SHIFT, TOKENS, RateOptimal

LEAST_GAIN = 0.02  # minimum price of a node, which limits the size of trees if nodes are free
RESCUE = 0.25  # initial acceptance of further children after the first child is rejected


@dataclass
class Visit:
    """The predictions at a node with children.

    Attributes:
        accept: the predicted acceptance of the first child.
        siblings: the predicted acceptance of each further child, given that the children before it are rejected.
        kept: index of the accepted child, if verification reached the node; None if no child was accepted.
    """

    accept: float
    siblings: list[float] = field(default_factory=list)
    kept: int | None = None


class SiblingAcceptance:
    """Statistics of the acceptance of further children, learned from verification.

    Attributes:
        rescue: accepted siblings per rejected first child.
        shift: log-odds to add to predictions for siblings.
    """

    def __init__(self) -> None:
        self.rescue = RunningRatio(RESCUE, PRIOR, TOKENS)
        self.shift = 0.0

    def add(self, predicted: Sequence[float], kept: int | None) -> None:
        """Learn from the siblings of a rejected first child.

        Args:
            predicted: the predicted acceptance of each sibling.
            kept: the number of the accepted sibling, from 1; None if all were rejected.
        """
        self.rescue.add(kept is not None, 1.0)
        for accept in predicted[:kept]:
            self.shift -= SHIFT * accept
        if kept is not None:
            self.shift += SHIFT


class RateOptimalTree(RateOptimal):
    """Decides which nodes of one request's tree are drafted.

    The trained predictor, whose lag must be 0, predicts the acceptance of first children.
    :mod:`~specpilot.controllers.acceptance.sibling_acceptance` predicts that of further children. Both predictions are
    shifted by log-odds learned from the text. The rate is that of the text so far, by the cost model's times. With
    ``adapt`` these times follow the rounds' wall times. The price of a node then becomes that in trees of the current
    size: forwards over many tokens have a steeper cost than forwards over few. Texts then also share the statistics of
    further children.
    """

    def __init__(
        self, predictor: AcceptancePredictor, cost: CostModel, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> None:
        self.siblings = SiblingAcceptance()
        super().__init__(predictor, cost, adapt=adapt, batch=batch)

    @classmethod
    def of(cls, chain: RateOptimal) -> RateOptimalTree:
        """Return a controller with the predictor and the costs of ``chain``; adapting costs also learn from trees."""
        tree = cls(chain.predictor, chain.cost, batch=chain.batch)
        tree.running = chain.running
        return tree

    def start_text(self) -> None:
        super().start_text()
        if self.running is None:
            self.siblings = SiblingAcceptance()

    @property
    def node_price(self) -> float:
        """The minimum gain, in tokens, of a node that needs no forward of the draft.

        It is λ·b, where λ is the rate in tokens per second, and b the seconds of verifying one more token.
        """
        return max(self.rate.value * self.cost.t_verify_token, LEAST_GAIN)

    def visit(self, step: Step) -> Visit:
        """Return the predictions at the node whose first child is the token of ``step``."""
        return Visit(self._shifted(self.predictor.predict(step)))

    def sibling(self, logit: float) -> float:
        """Return the predicted acceptance of a further child with the log-odds ``logit``."""
        return sigmoid(logit + self.siblings.shift)

    def level(self, survivals: Sequence[float]) -> list[int]:
        """Return the indices of a level's nodes that get children; none if the level is not worth the draft's forward.

        Args:
            survivals: π of each node, the predicted probability that the node is accepted.
        """
        rate, acceptance = self.rate.value, self.later.value
        price = max(rate * (self.cost.t_verify_token + read_cost(self.cost)), LEAST_GAIN)
        worth: list[int] = []
        surplus = 0.0
        for node, survival in enumerate(survivals):
            sibling = survival * (1.0 - acceptance) * self.siblings.rescue.value - self.node_price
            gain = survival * acceptance - price + max(0.0, sibling)
            if gain >= 0.0:
                worth.append(node)
                surplus += gain
        forward = rate * (level_cost(self.cost, 1) - read_cost(self.cost))
        return worth if surplus >= forward else []

    def end_tree(self, parents: Sequence[int], visits: Sequence[Visit]) -> None:
        """Learn from a verified tree.

        Args:
            parents: the parent of each node; -1 for children of the root.
            visits: the nodes with children that verification reached, from the root down.
        """
        if self.running is not None and self.running.cost is not self.cost:
            self.rate.below *= tree_cost(self.running.cost, parents) / tree_cost(self.cost, parents)
            self.cost = self.running.cost
        accepted = sum(visit.kept is not None for visit in visits)
        seconds = tree_cost(self.cost, parents)
        self.rate.add(accepted + 1.0, seconds)
        self._count_draft(accepted, seconds)
        for depth, visit in enumerate(visits):
            first = visit.kept == 0
            if depth:
                self.later.add(first, 1.0)
            self.shift += SHIFT * (first - visit.accept)
            if visit.siblings and not first:
                self.siblings.add(visit.siblings, visit.kept)

    def end_round(self, drafted: int, accepted: int) -> None:
        """Do nothing, because the drafter reports trees to :meth:`end_tree`."""
