"""Trees for :mod:`.online_confidence`: a fit to verified tokens predicts the acceptance of a node's first child.

These trees need no prior training. As in EAGLE-2 (Li et al. 2024, arXiv 2406.16858) they depend on the draft's
confidence. Here the confidence is calibrated while decoding, with the text's n-grams, and a node must be worth its
price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..acceptance.predictor import AcceptancePredictor
from ..acceptance.step import Step
from .online_confidence import ACCEPTANCE, AcceptanceFit, Evidence, OnlineConfidence, step_evidence
from .rate_optimal_tree import RateOptimalTree, Visit


class ConfidencePredictor(AcceptancePredictor):
    """Predicts ``â_k = σ(ω·x + β_k)`` with the current fit."""

    lag = 0
    mean = ACCEPTANCE

    def __init__(self, fit: AcceptanceFit) -> None:
        self.fit = fit

    def predict(self, step: Step) -> float:
        return self.fit.probability(step.index, step_evidence(step))


@dataclass(kw_only=True)
class ConfidenceVisit(Visit):
    """A node with the features of its first child.

    Attributes:
        position: position of the child in its path, from 1.
        evidence: x of the child.
    """

    position: int
    evidence: Evidence


class OnlineConfidenceTree(RateOptimalTree):
    """Decides which nodes of one request's tree are drafted; all texts share the fit.

    Args:
        chain: the controller of chains whose costs and fit are used.
    """

    def __init__(self, chain: OnlineConfidence) -> None:
        assert chain.cost is not None
        self.fit = chain.fit
        super().__init__(ConfidencePredictor(chain.fit), chain.cost, batch=chain.batch)
        self.running = chain.running

    def visit(self, step: Step) -> Visit:
        evidence = step_evidence(step)
        accept = self._shifted(self.fit.probability(step.index, evidence))
        return ConfidenceVisit(accept, position=step.index, evidence=evidence)

    def end_tree(self, parents: Sequence[int], visits: Sequence[Visit]) -> None:
        super().end_tree(parents, visits)
        for visit in visits:
            assert isinstance(visit, ConfidenceVisit)
            self.fit.add(visit.position, visit.evidence, visit.accepted_child == 0)
