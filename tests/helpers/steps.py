"""Drafted tokens as length controllers observe them, and a predictor whose probabilities a test chooses."""

from collections.abc import Sequence

import torch
from specpilot.controllers.acceptance.ngram_index import no_match
from specpilot.controllers.length import MAX_DRAFT, AcceptancePredictor, Step
from specpilot.controllers.sampling import SamplingParams


class TablePredictor(AcceptancePredictor):
    """Predicts that token i of a round is accepted with probability ``probabilities[i]``, or a single probability."""

    def __init__(self, probabilities: Sequence[float] | float, mean: float = 0.6, lag: int = 0) -> None:
        self.mean, self.lag = mean, lag
        self.probabilities = [probabilities] * MAX_DRAFT if isinstance(probabilities, float) else probabilities

    def predict(self, step: Step) -> float:
        return self.probabilities[step.index - 1 - self.lag]


def step(
    weights: Sequence[float] = (1.0,), token: int = 0, index: int = 1, sampling: SamplingParams | None = None
) -> Step:
    """Return the step of a token whose draft distribution at temperature 1 is proportional to ``weights``."""
    logits = torch.tensor(weights, dtype=torch.float64).log()
    q = (sampling or SamplingParams(1.0, None))(logits)
    return Step(index, token, float(q[token]), q, logits, torch.empty(0), no_match)
