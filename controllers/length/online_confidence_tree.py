"""Trees grown by :mod:`.online_confidence`: a node's first child is predicted by a fit to verified tokens.

So trees need no prior training. As in EAGLE-2 (Li et al. 2024, arXiv 2406.16858) they follow the draft's confidence;
here the confidence is calibrated while decoding, and a node must be worth its price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..acceptance.predictor import AcceptancePredictor
from ..acceptance.step import Step
from .online_confidence import ACCEPTANCE, AcceptanceFit, OnlineConfidence, confidence_logit
from .rate_optimal_tree import RateOptimalTree, Visit


class ConfidencePredictor(AcceptancePredictor):
    """``â_k = σ(ω·logit(max q) + β_k)`` by the present fit."""

    lag = 0
    mean = ACCEPTANCE

    def __init__(self, fit: AcceptanceFit) -> None:
        self.fit = fit

    def predict(self, step: Step) -> float:
        return self.fit.probability(step.index, confidence_logit(step))


@dataclass
class ConfidenceVisit(Visit):
    """A node with what its first child is predicted from.

    Attributes:
        position: of the child in its path, from 1.
        logit: of the draft's highest probability at the node.
    """

    position: int = 0
    logit: float = 0.0


class OnlineConfidenceTree(RateOptimalTree):
    """Decides which nodes of a tree are drafted, for one request; the fit is shared by all texts.

    Args:
        chain: the controller of chains whose costs and fit it uses.
    """

    def __init__(self, chain: OnlineConfidence) -> None:
        assert chain.cost is not None
        self.fit = chain.fit
        super().__init__(ConfidencePredictor(chain.fit), chain.cost, batch=chain.batch)
        self.running = chain.running

    def visit(self, step: Step) -> Visit:
        logit = confidence_logit(step)
        accept = self._shifted(self.fit.probability(step.index, logit))
        return ConfidenceVisit(accept, position=step.index, logit=logit)

    def end_tree(self, parents: Sequence[int], visits: Sequence[Visit]) -> None:
        super().end_tree(parents, visits)
        for visit in visits:
            assert isinstance(visit, ConfidenceVisit)
            self.fit.add(visit.position, visit.logit, visit.kept == 0)
