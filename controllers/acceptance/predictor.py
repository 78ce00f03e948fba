"""Acceptance predictors: the probability that the target accepts a drafted token, for length controllers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from ...common.errors import InputError
from ..checkpoints.provenance import differ_in_acceptance
from ..sampling import SamplingParams
from .ngram_index import NgramMatch
from .step import DraftSignals, Step


class AcceptancePredictor(ABC):
    """Base class of predictors of acceptance, token by token.

    A predictor has no state, so that all requests of a batch share one.

    Attributes:
        lag: number of newest tokens that cannot be predicted yet, 0 or 1.
        mean: mean acceptance in the training data.
        samplings: sampling parameters of the training data; empty if unknown.
        verifier: verification rule of the training data; None if unknown.
        draft_exponent: power to which the draft's probabilities are raised, see :class:`.Calibration`.
    """

    lag: int
    mean: float
    samplings: tuple[SamplingParams, ...] = ()
    verifier: str | None = None
    draft_exponent: float = 1.0

    def check_sampling(self, sampling: SamplingParams) -> None:
        """Warn if no sampling parameters of the training data are those of a request, ``sampling``."""
        if self.samplings and not any(sampling.is_equivalent(trained) for trained in self.samplings):
            trained = " and ".join(map(str, self.samplings))
            warnings.warn(
                f"the controller was trained under {trained}, decoding uses {sampling}: the output stays exact, "
                "but drafts may stop too early or too late",
                stacklevel=2,
            )

    def check_verifier(self, verifier: str) -> None:
        """Warn if the rule ``verifier`` of a request has another acceptance than the rule of the training data."""
        if differ_in_acceptance(self.verifier, verifier):
            warnings.warn(
                f"the controller was trained for the verification rule {self.verifier}, decoding uses {verifier}: the "
                "output stays exact, but drafts may stop too early or too late",
                stacklevel=2,
            )

    def state_values(self, hidden: Tensor) -> Tensor | None:
        """Return the numbers (N, m) that :meth:`predict` needs of draft states ``hidden`` (N, d).

        They become ``Step.state_values``. None if the predictor reads no states.
        """
        return None

    @abstractmethod
    def predict(self, step: Step) -> float:
        """Return the acceptance probability of a token, given that all tokens before it are accepted.

        The token is the current one, or with ``lag`` 1 the one before it. The method is not called without such a
        token.
        """


class TrainedPredictor(AcceptancePredictor):
    """A trained predictor. Decoding with it can also be simulated on recorded texts (``predict_all``)."""

    @abstractmethod
    def predict_all(
        self, signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], hidden: Tensor, tokens: Sequence[int]
    ) -> list[float]:
        """Return the acceptance probabilities of N tokens of a recorded text, as :meth:`predict` returns them.

        Args:
            signals: draft signals of each token.
            ngram_match: n-gram match of each token.
            hidden: (N, d) the draft's last hidden state before each token; with ``lag`` 1, at the token before it.
            tokens: ids of the N tokens.
        """


def check_states(hidden_size: int, embedding: Tensor) -> None:
    """Check that a draft with this ``embedding`` (V, d) has states of ``hidden_size``.

    Raises:
        InputError: its states have another size.
    """
    if hidden_size != embedding.shape[1]:
        raise InputError(
            f"reads states of size {hidden_size}, but the states of this draft have size {embedding.shape[1]}; "
            "train a controller for this pair"
        )
