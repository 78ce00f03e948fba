"""The oracle: stop just before the first token that would be rejected (SpecDec++, Huang et al. 2024, Lemma 2.1).

At temperature 0 that token is known beforehand: the text is the target's own, and the draft's choice at each place of
it can be looked up. At any other the accept toss would have to be known, which falls later: nothing real reaches it.
"""

from __future__ import annotations

from ..errors import InputError
from ..sampling import SamplingParams
from .base import MAX_DRAFT, LengthController, Step


class Oracle(LengthController):
    """No rule but a yardstick: what the decoder looks up for it costs more than it saves, and is not in its times.

    Attributes:
        agrees: whether, after the first i tokens of the target's text, the draft's next choice is the target's.
        place: how many tokens the text has.
    """

    def __init__(self) -> None:
        self.agrees: list[bool] = []
        self.place = 0

    def check_sampling(self, sampling: SamplingParams) -> None:
        if sampling.temperature > 0:
            raise InputError(
                f"length='oracle': at temperature {sampling.temperature} it would have to know the accept tosses; "
                "use temperature 0"
            )

    def start_text(self) -> None:
        self.place = 1

    def start_round(self) -> bool:
        if self._will_agree(self.place):
            return True
        self.place += 1  # this round adds the target's own token alone
        return False

    def observe(self, step: Step) -> bool:
        return step.index < MAX_DRAFT and self._will_agree(self.place + step.index)

    def end_round(self, drafted: int, accepted: int) -> None:
        self.place += accepted + 1

    def _will_agree(self, place: int) -> bool:
        return place < len(self.agrees) and self.agrees[place]
