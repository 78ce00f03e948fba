"""When a controller drafts although drafting does not seem to pay: it may have begun to, and only a draft can tell."""

from __future__ import annotations

PROBE = 16  # rounds without a draft before a probe
LONGEST = 512  # maximum number of such rounds after several failed probes


class Probes:
    """Counts rounds without a draft.

    A probe comes after ``PROBE`` of them, then after twice as many each time, up to ``LONGEST``. Where a probe pays,
    the next round drafts as well, and that number is halved.
    """

    def __init__(self) -> None:
        self.idle, self.patience = 0, PROBE  # rounds since something was drafted, and how many there may be
        self.probing = False  # this round drafts although it does not seem to pay
        self.succeeded = False  # the last round was a probe that paid

    def start_round(self, *, pays: bool, may_pay: bool) -> bool:
        """Whether to draft.

        Args:
            pays: whether drafting pays, as far as is known.
            may_pay: whether it would pay if all was accepted.
        """
        self.probing = may_pay and not pays and (self.succeeded or self.idle >= self.patience)
        if not (pays or self.probing):
            self.idle += 1
            return False
        if pays:
            self.patience = PROBE
        elif not self.succeeded:
            self.patience = min(2 * self.patience, LONGEST)
        self.idle, self.succeeded = 0, False
        return True

    def end_round(self, paid: bool) -> None:
        """Whether a round that drafted gave at least as many tokens as the rate yields in its time."""
        if paid and self.probing:
            self.patience, self.succeeded = max(self.patience // 2, PROBE), True
