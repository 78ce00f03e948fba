"""Rate-optimal trees: rate-optimal stopping (:mod:`.rate_optimal`), generalised to width.

Let π(v) be the predicted probability that node v of a draft tree is accepted. A round with the tree yields 1 + Σ π(v)
tokens in expectation, and π never increases from a node to its children. For a rate λ and a cost c of each node, the
best tree is therefore {v : π(v) ≥ λ·c}: nodes are added best first while the next node is worth its price. The nodes of
a level share the cost of drafting, because one forward of the draft reads all nodes of a level that get children. A
level is drafted if its nodes' gains exceed their own prices by at least the cost of the forward. With one child for
each node this is the stopping rule of a chain. If no second child is worth its price, the tree is a chain too.

If the time of a verification is not linear in the number of tokens (:mod:`.verification_shape`), c depends on the size
of the tree: nodes in a flat part cost little, and a node that begins a step costs much. The rest of the tree is not
known while it grows. It is planned as a chain with the mean acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..acceptance.calibration import sigmoid
from ..acceptance.predictor import AcceptancePredictor
from ..acceptance.step import Step
from .cost_based import PRIOR
from .cost_model import BatchCosts, CostModel, level_cost, read_cost, tree_cost
from .rate import RunningRatio, best_continuation
from .rate_optimal import SHIFT, TOKENS, RateOptimal

LEAST_GAIN = 0.02  # minimum price of a node, which limits the size of trees if nodes are free
RESCUE = 0.25  # initial acceptance of further children after the first child is rejected


@dataclass
class Visit:
    """The predictions at a node with children.

    Attributes:
        accept: the predicted acceptance of the first child.
        siblings: the predicted acceptance of each further child, given that the children before it are rejected.
        accepted_child: index of the accepted child, if verification reached the node; None if no child was accepted.
    """

    accept: float
    siblings: list[float] = field(default_factory=list)
    accepted_child: int | None = None


class SiblingAcceptance:
    """Statistics of how often a sibling of a rejected first child is accepted, learned from verification.

    Attributes:
        rescue: running share of rejected first children of which a sibling is accepted.
        shift: log-odds to add to predicted acceptance probabilities of siblings.
    """

    def __init__(self) -> None:
        self.rescue = RunningRatio(RESCUE, PRIOR, TOKENS)
        self.shift = 0.0

    def add(self, predicted: Sequence[float], accepted_sibling: int | None) -> None:
        """Learn from the siblings of a rejected first child.

        Args:
            predicted: the predicted acceptance of each sibling.
            accepted_sibling: the number of the accepted sibling, from 1; None if all were rejected.
        """
        self.rescue.add(accepted_sibling is not None, 1.0)
        for accept in predicted[:accepted_sibling]:
            self.shift -= SHIFT * accept
        if accepted_sibling is not None:
            self.shift += SHIFT


class RateOptimalTree(RateOptimal):
    """The controller that decides which nodes of one request's tree are drafted.

    The trained predictor, whose lag must be 0, predicts the acceptance of first children.
    :mod:`~specpilot.controllers.acceptance.sibling_acceptance` predicts that of further children. Both predictions are
    shifted by log-odds learned from the text. The rate is that of the text so far, by the cost model's times. With
    ``adapt`` these times follow the rounds' wall times. The price of a node then becomes that in trees of the current
    size: forwards over many tokens have a steeper cost than forwards over few. Texts then also share the statistics of
    further children.

    Attributes:
        rest: planned number of first children after the current level; 0 if no price depends on it.
        least_planned: π of the last of these children; 1 without them.
    """

    def __init__(
        self, predictor: AcceptancePredictor, cost: CostModel, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> None:
        self.siblings = SiblingAcceptance()
        self.rest, self.least_planned = 0, 1.0
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

    def start_round(self) -> bool:
        starts = super().start_round()
        self._plan_rest(self.first.value * self.later.value, 1)
        return starts

    def _plan_rest(self, survival: float, nodes: int) -> None:
        """Plan the first children after the current level, which the size of the tree at its end depends on.

        If the time of a verification is linear, the price of a node does not depend on this size.

        Args:
            survival: π of the first of these children.
            nodes: number of nodes of the tree without them.
        """
        self.rest, self.least_planned = 0, 1.0
        if self.cost.verify_shape:
            later = self.later.value
            self.rest = best_continuation(survival, later, self.rate.value, self.cost, nodes).tokens
            if self.rest:
                self.least_planned = survival * later ** (self.rest - 1)

    def node_price(self, nodes: int) -> float:
        """Return the minimum gain, in tokens, of a node that needs no forward of the draft.

        It is λ·b, where λ is the rate in tokens per second, and b the seconds by which the node extends the
        verification at the end of the tree. If the node begins a step of these seconds, it may also replace the last
        planned first child. The price is then the gain of this child.

        Args:
            nodes: number of nodes of the tree, with the first children of its level.
        """
        return max(min(self.rate.value * self.cost.added(nodes + self.rest), self.least_planned), LEAST_GAIN)

    def visit(self, step: Step) -> Visit:
        """Return the predictions at the node whose first child is the token of ``step``."""
        return Visit(self._shifted(self.predictor.predict(step)))

    def sibling(self, logit: float) -> float:
        """Return the predicted acceptance of a further child with the log-odds ``logit``."""
        return sigmoid(logit + self.siblings.shift)

    def level(self, survivals: Sequence[float], nodes: int) -> list[int]:
        """Return the indices of a level's nodes that get children; none if the level is not worth the draft's forward.

        The nodes with the largest π get children. Their number has the largest total gain. If the time of a
        verification has steps, the gain contains that of the levels after this one, because they share a step.

        Args:
            survivals: π of each node, the predicted probability that the node is accepted.
            nodes: number of nodes of the tree.
        """
        rate, acceptance, cost = self.rate.value, self.later.value, self.cost
        order = sorted(range(len(survivals)), key=lambda node: -survivals[node])
        below = survivals[order[0]] * acceptance**2 if order else 0.0  # π of the first child in the level after this
        self._plan_rest(below, nodes + 1)
        chosen, largest = 0, 0.0
        surplus = -rate * (level_cost(cost, 1) - read_cost(cost))
        for count, node in enumerate(order, 1):
            survival = survivals[node]
            read = read_cost(cost, max(count - 1, 1))
            price = max(rate * (cost.added(nodes + count - 1) + read), LEAST_GAIN)
            sibling = survival * (1.0 - acceptance) * self.siblings.rescue.value - self.node_price(nodes + count)
            gain = survival * acceptance - price + max(0.0, sibling)
            surplus += gain
            total = surplus
            if cost.verify_shape:
                total += best_continuation(below, acceptance, rate, cost, nodes + count).gain
            elif gain < 0.0:
                break
            if total >= largest:
                chosen, largest = count, total
        self._plan_rest(below, nodes + chosen)
        return sorted(order[:chosen])

    def end_tree(self, parents: Sequence[int], visits: Sequence[Visit]) -> None:
        """Learn from a verified tree.

        Args:
            parents: the parent of each node; -1 for children of the root.
            visits: the nodes with children that verification reached, from the root down.
        """
        if self.running is not None and self.running.cost is not self.cost:
            self.rate.below *= tree_cost(self.running.cost, parents) / tree_cost(self.cost, parents)
            self.cost = self.running.cost
        accepted = sum(visit.accepted_child is not None for visit in visits)
        seconds = tree_cost(self.cost, parents)
        self.rate.add(accepted + 1.0, seconds)
        self._count_draft(accepted, seconds)
        for depth, visit in enumerate(visits):
            first = visit.accepted_child == 0
            if depth:
                self.later.add(first, 1.0)
            self.shift += SHIFT * (first - visit.accept)
            if visit.siblings and not first:
                self.siblings.add(visit.siblings, visit.accepted_child)

    def end_round(self, drafted: int, accepted: int) -> None:
        """Do nothing, because the drafter reports trees to :meth:`end_tree`."""
