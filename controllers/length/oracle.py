"""The upper bound of all length rules at temperature 0."""

from __future__ import annotations

from ...common.errors import InputError
from .. import MAX_DRAFT
from ..acceptance.step import Step
from ..sampling import SamplingParams
from .base import LengthController
from .rule import Rule


class Oracle(LengthController):
    """Stops just before the first token that would be rejected (SpecDec++, Huang et al. 2024, Lemma 2.1).

    At temperature 0 this token is computed beforehand, from the target's greedy text and the draft's greedy choice at
    each position. At other temperatures it would depend on the later random numbers of the verification. The rule is an
    upper bound for comparisons: the computation of ``agrees`` takes longer than the rule saves. It runs before the
    first round of a text, and is part of the time of the prompt.

    Attributes:
        agrees: for each i whether draft and target choose the same token after i tokens of the target's text.
        position: number of tokens of the text.
    """

    def __init__(self) -> None:
        self.agrees: list[bool] = []
        self.position = 0

    def check_sampling(self, sampling: SamplingParams) -> None:
        if sampling.temperature > 0:
            raise InputError(
                f"length='oracle': not defined at temperature {sampling.temperature}, where acceptance is random; "
                "use temperature 0"
            )

    def start_text(self) -> None:
        self.position = 1

    def start_round(self) -> bool:
        if self._will_agree(self.position):
            return True
        self.position += 1  # this round adds only the target's token
        return False

    def observe(self, step: Step) -> bool:
        return step.index < MAX_DRAFT and self._will_agree(self.position + step.index)

    def end_round(self, drafted: int, accepted: int) -> None:
        self.position += accepted + 1

    def _will_agree(self, position: int) -> bool:
        """Return true if draft and target choose the same token after ``position`` tokens."""
        return position < len(self.agrees) and self.agrees[position]


RULE = Rule("oracle", Oracle)
