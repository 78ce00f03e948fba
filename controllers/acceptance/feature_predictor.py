"""The acceptance predictor of a feature model; it predicts the current token without lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sampling import SamplingParams
from .calibration import sigmoid
from .draft_signals import DraftSignals
from .feature_model import FeatureModel, features
from .predictor import AcceptancePredictor

if TYPE_CHECKING:
    from ..length.base import Step


class FeaturePredictor(AcceptancePredictor):
    """Predicts acceptance with a feature model.

    Args:
        model: the model; its current coefficients are copied.
        mean: mean acceptance in the data.
        samplings: sampling parameters of the data, if known.
    """

    lag = 0

    def __init__(self, model: FeatureModel, mean: float = 0.5, samplings: tuple[SamplingParams, ...] = ()) -> None:
        self.mean, self.samplings = mean, samplings
        self.bias: float = model.bias.item()
        self.confidence, self.doubt, self.entropy = model.weight.tolist()

    def predict(self, step: Step) -> float:
        return self.predict_signals(step.signals())

    def predict_signals(self, signals: DraftSignals) -> float:
        """The prediction for a token from its draft signals."""
        x, y, z = features(*signals)
        return sigmoid(self.bias + self.confidence * x + self.doubt * y + self.entropy * z)
