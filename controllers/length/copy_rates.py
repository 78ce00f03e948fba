"""How often a text goes on as an earlier occurrence of its last tokens did: by the length of the match, and so far.

Every token of the text tells it, drafted or not: token x_t has the distribution p, so a copy y is x_t with probability
p(y), which is the acceptance probability of the draft y.
"""

from __future__ import annotations

from bisect import bisect_right

from .rate import RunningRatio

MAX_RUN = 16  # tokens of a match that are counted at most
RUNS = (1, 2, 3, 4, 6, 9, MAX_RUN)  # the shortest match of each group
PRIOR = (0.25, 0.45, 0.5, 0.55, 0.65, 0.75, 0.9)  # acceptance of a copy after such a match, before anything is seen
WEIGHT = 8.0  # matches that the prior counts for
MEMORY = 64.0  # matches
RECENT, LATEST = 0.3, 10.0  # prior and memory of the rate of the latest matches


class CopyRates:
    """Acceptance rates of one text's copies.

    Attributes:
        recent: rate of the latest matches, of any length.
    """

    def __init__(self) -> None:
        self.groups = [RunningRatio(prior, WEIGHT, MEMORY) for prior in PRIOR]
        self.recent = RunningRatio(RECENT, LATEST, LATEST)

    def add(self, run: int, kept: bool) -> None:
        """After a match of ``run`` tokens the text went on with the copy, or not."""
        self.groups[_group(run)].add(kept, 1.0)
        self.recent.add(kept, 1.0)

    def after(self, run: int) -> float:
        """The rate after matches of about ``run`` tokens."""
        return self.groups[_group(run)].value


def _group(run: int) -> int:
    return bisect_right(RUNS, run) - 1
