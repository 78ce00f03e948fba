"""Rules for when a round stops drafting that need no costs; only the one by a predictor needs training.

Symbols: y_i the i-th drafted token of a round, q the distribution it was drawn from, θ and h thresholds.
"""

from __future__ import annotations

import math

from torch import Tensor

from ...common.errors import InputError
from .. import MAX_DRAFT
from ..acceptance.predictor import AcceptancePredictor
from ..acceptance.step import Step
from ..sampling import SamplingParams
from .base import LengthController


class CountedLength(LengthController):
    """Drafts ``k`` tokens, whatever they are.

    Attributes:
        k: number of tokens of the round's draft.
    """

    k: int

    @property
    def planned(self) -> int | None:
        return self.k if type(self).observe is CountedLength.observe else None

    def observe(self, step: Step) -> bool:
        return step.index < self.k


class Fixed(CountedLength):
    """A fixed draft length K (Leviathan et al. 2023; Chen et al. 2023). K = 0 is autoregressive decoding."""

    def __init__(self, k: int) -> None:
        if not 0 <= k <= MAX_DRAFT:
            raise InputError(f"length={k}: a fixed draft length must be between 0 (autoregressive) and {MAX_DRAFT}")
        self.k = k

    def start_round(self) -> bool:
        return self.k > 0


def first_length(rule: str, first: float) -> int:
    """``first`` if it can be the length of a text's first draft.

    Raises:
        InputError: it is not a whole number from 1 to ``MAX_DRAFT``.
    """
    if not (1 <= first <= MAX_DRAFT and first == int(first)):
        raise InputError(
            f"length='{rule}:{first:g}': the first draft length must be a whole number from 1 to {MAX_DRAFT}"
        )
    return int(first)


def checked(rule: str, threshold: float) -> float:
    """``threshold`` if it is a probability.

    Raises:
        InputError: it is not.
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"length='{rule}:{threshold:g}': the threshold must be in [0, 1]")
    return threshold


class Heuristic(CountedLength):
    """Two more tokens after a fully accepted draft, and one less after any other (transformers' heuristic)."""

    def __init__(self, first: float = 5) -> None:
        self.first = self.k = first_length("heuristic", first)

    def start_text(self) -> None:
        self.k = self.first

    def end_round(self, drafted: int, accepted: int) -> None:
        self.k = min(MAX_DRAFT, self.k + 2) if accepted == drafted else max(1, self.k - 1)


AVERAGING = 0.2  # weight of the last round in the moving average


class AdaptiveLength(CountedLength):
    """A moving average of the text's accepted lengths, ``round(mean) + 1``, as in SGLang's adaptive steps.

    Args:
        first: length of a text's first draft.

    Raises:
        InputError: ``first`` is not a whole number from 1 to ``MAX_DRAFT``.
    """

    def __init__(self, first: float = 4) -> None:
        self.first = first_length("adaptive-length", first)
        self.start_text()

    @property
    def k(self) -> int:  # type: ignore[override]
        """Length of the next draft."""
        return min(MAX_DRAFT, int(self.mean + 0.5) + 1)

    def start_text(self) -> None:
        self.mean = self.first - 1.0

    def end_round(self, drafted: int, accepted: int) -> None:
        self.mean += AVERAGING * (accepted - self.mean)


class Confidence(LengthController):
    """Stop at a token of low draft probability, ``q(y) < θ`` (transformers' assistant confidence threshold)."""

    def __init__(self, threshold: float) -> None:
        self.threshold = checked("confidence", threshold)

    def observe(self, step: Step) -> bool:
        return step.confidence() >= self.threshold


class CumulativeConfidence(LengthController):
    """Stop when the draft's probability of all drafted tokens falls below θ: ``Π q(y_i) < θ``."""

    def __init__(self, threshold: float) -> None:
        self.threshold = checked("cumulative-confidence", threshold)
        self.product = 1.0

    def start_round(self) -> bool:
        self.product = 1.0
        return True

    def observe(self, step: Step) -> bool:
        self.product *= step.confidence()
        return self.product >= self.threshold


class Entropy(LengthController):
    """AdaEDL (Agrawal et al. 2024): stop when the draft's entropy is high, ``1 - sqrt(γ·H(q)) < θ``, H in nats.

    The left side is a lower bound of the acceptance probability for a γ that depends on the pair; the paper uses 0.2.
    """

    def __init__(self, threshold: float, gamma: float = 0.2) -> None:
        if not (threshold <= 1 and math.isfinite(threshold)):
            raise InputError(f"length='entropy:{threshold:g}': the threshold must be a finite number up to 1")
        if not (gamma >= 0 and math.isfinite(gamma)):
            raise InputError(f"gamma={gamma}: must be a finite number ≥ 0")
        self.threshold, self.gamma = threshold, gamma

    def observe(self, step: Step) -> bool:
        return 1.0 - math.sqrt(self.gamma * step.entropy()) >= self.threshold


MAX_FALLBACK = 10  # tokens of a round


class Fallback(LengthController):
    """BiLD (Kim et al. 2023, §3.2): stop when ``max_v q(v) < θ``, or after ten tokens."""

    def __init__(self, threshold: float) -> None:
        self.threshold = checked("fallback", threshold)

    def observe(self, step: Step) -> bool:
        return step.index < MAX_FALLBACK and step.top_probability() >= self.threshold


class AcceptanceLength(LengthController):
    """SpecDec++ (Huang et al. 2024, Algorithm 2): stop if the probability of a rejection exceeds h, ``1 - Π â_i > h``.

    With a predictor of lag 1, the product at y_{i+1} runs to i.
    """

    def __init__(self, predictor: AcceptancePredictor, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold={threshold}: the acceptance head's stopping threshold must be in [0, 1]")
        self.predictor, self.threshold = predictor, threshold
        self.survival = 1.0

    def check_sampling(self, sampling: SamplingParams) -> None:
        self.predictor.check_sampling(sampling)

    def of_state(self, hidden: Tensor) -> Tensor | None:
        return self.predictor.of_state(hidden)

    def start_round(self) -> bool:
        self.survival = 1.0
        return True

    def observe(self, step: Step) -> bool:
        if step.index > self.predictor.lag:  # the state before the first token is not that of a drafted token
            self.survival *= self.predictor.predict(step)
        return 1.0 - self.survival <= self.threshold


class Oracle(LengthController):
    """Stops just before the first token that would be rejected (SpecDec++, Huang et al. 2024, Lemma 2.1).

    At temperature 0 that token is computed beforehand, from the target's greedy text and the draft's greedy choice at
    each position. At other temperatures it would depend on random draws of the verification, which come later. It is an
    upper bound for comparison: computing ``agrees`` costs more than it saves and is not part of measured times.

    Attributes:
        agrees: entry i is whether draft and target choose the same token after i tokens of the target's text.
        place: number of tokens of the text.
    """

    def __init__(self) -> None:
        self.agrees: list[bool] = []
        self.place = 0

    def check_sampling(self, sampling: SamplingParams) -> None:
        if sampling.temperature > 0:
            raise InputError(
                f"length='oracle': not defined at temperature {sampling.temperature}, where acceptance is random; "
                "use temperature 0"
            )

    def start_text(self) -> None:
        self.place = 1

    def start_round(self) -> bool:
        if self._will_agree(self.place):
            return True
        self.place += 1  # this round adds only the target's token
        return False

    def observe(self, step: Step) -> bool:
        return step.index < MAX_DRAFT and self._will_agree(self.place + step.index)

    def end_round(self, drafted: int, accepted: int) -> None:
        self.place += accepted + 1

    def _will_agree(self, place: int) -> bool:
        return place < len(self.agrees) and self.agrees[place]
