"""Probabilities from the draft's own distribution, which judges the token in hand with no lag."""

from __future__ import annotations

from ..feature_model import FeatureModel
from ..sampling import SamplingParams
from .base import Step
from .source import AcceptanceSource, Judged


class FeatureSource(AcceptanceSource):
    late = 0

    def __init__(self, model: FeatureModel) -> None:
        self.model, self.mean = model, model.mean

    def check_warp(self, warp: SamplingParams) -> None:
        self.model.origin.check_warp(warp)

    def judge(self, step: Step) -> Judged:
        return Judged(self.model.probability(*step.says()))
