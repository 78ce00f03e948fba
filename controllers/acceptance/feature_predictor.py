"""Probabilities from the draft's own distribution, which judges the token in hand with no lag."""

from __future__ import annotations

from ..length.base import Step
from ..sampling import SamplingParams
from .feature_model import FeatureModel
from .predictor import AcceptancePredictor, Prediction


class FeaturePredictor(AcceptancePredictor):
    lag = 0

    def __init__(self, model: FeatureModel) -> None:
        self.model, self.mean = model, model.mean

    def check_sampling(self, sampling: SamplingParams) -> None:
        self.model.provenance.check_sampling(sampling)

    def predict(self, step: Step) -> Prediction:
        return Prediction(self.model.probability(*step.signals()))
