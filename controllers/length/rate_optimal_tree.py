"""Rate-optimal trees: rate-optimal stopping (:mod:`.rate_optimal`), generalised to width.

Let π(v) be the predicted probability that node v of a draft tree is accepted. A round with the tree yields 1 + Σ π(v)
tokens in expectation, and π never grows from a node to its children. For a rate λ and a cost c of each node the best
tree is therefore {v : π(v) ≥ λ·c}: nodes are added best first while the next is worth its price. What drafting costs is
shared: a forward of the draft reads all nodes of a level that get children, and a level is drafted if its nodes are
worth more than their own price by what the forward costs. With one child for each node this is the stopping rule of a
chain, and where a second child is nowhere worth its price the tree is that chain.
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

LEAST_GAIN = 0.02  # nodes of less are not drafted, whatever they cost: bounds trees where nodes are free
RESCUE = 0.25  # acceptance of further children after the first is rejected, before anything is known


@dataclass
class Visit:
    """A node that has children.

    Attributes:
        accept: the predicted acceptance of its first child.
        siblings: of its further children, each given that those before it are rejected.
        kept: which child was accepted, if verification arrived at the node; None: none was.
    """

    accept: float
    siblings: list[float] = field(default_factory=list)
    kept: int | None = None


class SiblingAcceptance:
    """What verification has told of further children.

    Attributes:
        rescue: acceptances of siblings per rejected first child.
        shift: log-odds by which they are accepted more often than predicted.
    """

    def __init__(self) -> None:
        self.rescue = RunningRatio(RESCUE, PRIOR, TOKENS)
        self.shift = 0.0

    def add(self, predicted: Sequence[float], kept: int | None) -> None:
        """Of siblings with the ``predicted`` acceptances, ``kept`` was accepted, counted from 1; None if none was."""
        self.rescue.add(kept is not None, 1.0)
        for accept in predicted[:kept]:
            self.shift -= SHIFT * accept
        if kept is not None:
            self.shift += SHIFT


class RateOptimalTree(RateOptimal):
    """Decides which nodes of a tree are drafted, for one request.

    First children are predicted by the trained predictor, which must not lag; further ones by
    :mod:`~specpilot.controllers.acceptance.sibling_acceptance`. Both are shifted by log-odds learned from the text. The
    rate is the text's own so far, by the cost model's times. With ``adapt`` these follow the rounds' wall times, and a
    node's price becomes what it takes in trees of the present size: forwards over many tokens have a steeper cost than
    those over few. Texts then also share what they learn of further children.
    """

    def __init__(
        self, predictor: AcceptancePredictor, cost: CostModel, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> None:
        self.siblings = SiblingAcceptance()
        super().__init__(predictor, cost, adapt=adapt, batch=batch)

    @classmethod
    def of(cls, chain: RateOptimal) -> RateOptimalTree:
        """With the predictor and the costs of a controller of chains, which go on learning from the trees' rounds."""
        tree = cls(chain.predictor, chain.cost, batch=chain.batch)
        tree.running = chain.running
        return tree

    def start_text(self) -> None:
        super().start_text()
        if self.running is None:
            self.siblings = SiblingAcceptance()

    @property
    def node_price(self) -> float:
        """λ·b: what a node must yield that no forward of the draft is needed for."""
        return max(self.rate.value * self.cost.t_verify_token, LEAST_GAIN)

    def visit(self, step: Step) -> Visit:
        """The node whose first child is the token of ``step``."""
        return Visit(self._shifted(self.predictor.predict(step)))

    def sibling(self, logit: float) -> float:
        """Acceptance of a further child by its log-odds."""
        return sigmoid(logit + self.siblings.shift)

    def level(self, survivals: Sequence[float]) -> list[int]:
        """Which nodes of a level, given π of each, get children; none if the level is not worth the draft's forward."""
        rate, first = self.rate.value, self.later.value
        own = max(rate * (self.cost.t_verify_token + read_cost(self.cost)), LEAST_GAIN)
        worth: list[int] = []
        surplus = 0.0
        for node, survival in enumerate(survivals):
            sibling = survival * (1.0 - first) * self.siblings.rescue.value - self.node_price
            gain = survival * first - own + max(0.0, sibling)
            if gain >= 0.0:
                worth.append(node)
                surplus += gain
        forward = rate * (level_cost(self.cost, 1) - read_cost(self.cost))
        return worth if surplus >= forward else []

    def end_tree(self, parents: Sequence[int], visits: Sequence[Visit]) -> None:
        """A tree was verified.

        Args:
            parents: of its nodes, -1 for children of the root.
            visits: the nodes at which verification arrived, from the root down, as far as they had children.
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
        """The drafter reports trees to :meth:`end_tree`."""
