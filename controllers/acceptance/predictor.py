"""Acceptance predictors: the probability that the target accepts a drafted token, for length controllers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ..sampling import SamplingParams

if TYPE_CHECKING:
    from ..length.base import Step


class AcceptancePredictor(ABC):
    """Predicts token by token. It keeps no state between calls, so requests of a batch share one predictor.

    Attributes:
        lag: number of newest tokens that cannot be predicted yet, 0 or 1.
        mean: mean acceptance in the training data.
        samplings: sampling parameters of the training data; none if unknown.
    """

    lag: int
    mean: float
    samplings: tuple[SamplingParams, ...] = ()

    def check_sampling(self, sampling: SamplingParams) -> None:
        """Called for every request; warns if the predictor was trained with other sampling parameters only."""
        if self.samplings and not any(sampling.same_as(trained) for trained in self.samplings):
            trained = " and ".join(map(str, self.samplings))
            warnings.warn(
                f"the controller was trained under {trained}, decoding uses {sampling}: the output stays exact, "
                "but drafts may stop too early or too late",
                stacklevel=2,
            )

    @abstractmethod
    def predict(self, step: Step) -> float:
        """Acceptance probability of the newest token that can be predicted, given that all before it are accepted.

        That is the current token, or with ``lag`` 1 the one before it; it is not called before there is such a token.
        """
