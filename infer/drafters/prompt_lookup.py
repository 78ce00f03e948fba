"""Prompt lookup (Saxena 2023): the tokens after an earlier occurrence of a text's last tokens are the draft.

The draft needs no forward. The copied tokens are a function of the text, so that q is a point mass on each of them. The
rate at which the text continues like its matches is learned from every token of the text, drafted or not: token x_t has
the distribution p, so that a copy y equals x_t with probability p(y), which is the acceptance probability of the draft
y.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ...controllers.acceptance.ngram_index import NgramIndex
from ...controllers.length.rate import RunningRatio

MAX_RUN = 16  # maximum length of a match that is counted, in tokens
RUNS = (1, 2, 3, 4, 6, 9, MAX_RUN)  # the shortest match of each group
PRIOR = (0.25, 0.45, 0.5, 0.55, 0.65, 0.75, 0.9)  # acceptance of a copy in each group before the first observation
WEIGHT = 8.0  # weight of the prior, in matches
MEMORY = 64.0  # matches
RECENT, LATEST = 0.3, 10.0  # prior and memory of the rate of the latest matches


class Match(NamedTuple):
    """An earlier occurrence of a text's last tokens.

    Attributes:
        position: index of the token that followed the occurrence.
        run: number of last tokens that agree with those before ``position``, at most ``MAX_RUN``.
    """

    position: int
    run: int


class PromptLookup:
    """Matches in one growing text.

    Args:
        index: the text's n-grams.
        longest: length of the longest n-gram, at most the index's. Longer n-grams are tried first, and the latest
            occurrence is used.
    """

    def __init__(self, index: NgramIndex, longest: int) -> None:
        self.index, self.longest, self.tokens = index, longest, index.tokens
        self.length = len(self.tokens)  # tokens of the text up to the last call of `extend`

    def extend(self) -> list[tuple[int, bool]]:
        """Process the tokens that were appended to the text since the last call.

        Returns:
            For each appended token with a match before it: the length of the match, and whether it predicted the token.
        """
        self.index.update()
        matches = ((index, self._match(index)) for index in range(self.length, len(self.tokens)))
        self.length = len(self.tokens)
        return [
            (match.run, self.tokens[match.position] == self.tokens[index])
            for index, match in matches
            if match is not None
        ]

    def distance(self, match: Match) -> int:
        """Return the number of tokens from ``match.position`` to the end of the text."""
        return len(self.tokens) - match.position

    def match(self) -> Match | None:
        """Return the match of the text's last tokens; None if the last token did not occur before."""
        self.index.update()
        return self._match(len(self.tokens))

    def _match(self, end: int) -> Match | None:
        """Return the match of the tokens before ``end``, or None."""
        tokens, latest = self.tokens, self.index.latest(end, self.longest)
        if latest is None:
            return None
        position, run = latest
        while run < min(MAX_RUN, position) and tokens[position - 1 - run] == tokens[end - 1 - run]:
            run += 1
        return Match(position, run)

    def copy(self, match: Match, length: int, stop_tokens: frozenset[int]) -> list[int]:
        """Return the ``length`` tokens after ``match``, up to the first stop token.

        Where the text ends, the copy continues with its own first tokens, so that it continues a repetition.
        """
        copied: list[int] = []
        while len(copied) < length and not (copied and copied[-1] in stop_tokens):
            index = match.position + len(copied)
            copied.append(self.tokens[index] if index < len(self.tokens) else copied[index - len(self.tokens)])
        return copied


class CopyRates:
    """Acceptance rates of one text's copies, by the length of the match.

    Attributes:
        groups: the rate for each length in ``RUNS``.
        recent: the rate of the latest matches of all lengths.
    """

    def __init__(self) -> None:
        self.groups = [RunningRatio(prior, WEIGHT, MEMORY) for prior in PRIOR]
        self.recent = RunningRatio(RECENT, LATEST, LATEST)

    def add(self, run: int, accepted: bool) -> None:
        """Add a match of ``run`` tokens; ``accepted`` is true if the text continued with the copy."""
        self.groups[_group(run)].add(accepted, 1.0)
        self.recent.add(accepted, 1.0)

    def after(self, run: int) -> float:
        """Return the acceptance rate after matches of about ``run`` tokens."""
        return self.groups[_group(run)].value


def _group(run: int) -> int:
    """Return the index in ``RUNS`` of the group of a match of ``run`` tokens."""
    return bisect_right(RUNS, run) - 1
