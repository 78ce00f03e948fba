"""The configuration of the feature model."""

from __future__ import annotations

from dataclasses import dataclass

from ..acceptance.feature_model import FeatureModel
from .config import ControllerConfig, check_range


@dataclass(frozen=True, kw_only=True)
class FeatureModelConfig(ControllerConfig):
    """A logistic model of draft probabilities.

    Attributes:
        mean: mean acceptance in the data it was fitted to.
    """

    kind = "acceptance-features"
    title = "Feature model of acceptance"
    summary = (
        "Predicts, when a token is drawn from the draft model, the probability that the target model accepts it: "
        "logistic regression on log q(y), log(1 - max q) and the entropy of q. `cost.json` is what `specpilot bench "
        "cost --output cost.json` measures: drafting stops where a token no longer pays."
    )

    mean: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mean", self.mean, 0, 1)

    def module(self) -> FeatureModel:
        return FeatureModel()

    def usage(self) -> str:
        return f'{super().usage()}, cost="cost.json"'

    def rows(self) -> dict[str, str]:
        return {"mean acceptance": f"{self.mean:.3f}"}
