"""Prompt lookup (Saxena 2023): the continuation of an earlier occurrence of a text's last tokens is a draft.

It needs no forward. The copied tokens are a function of the text, so q is a point mass on each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...controllers.length.copy_rates import MAX_RUN


class Match(NamedTuple):
    """An earlier occurrence of a text's last tokens.

    Attributes:
        position: index of the token that followed the occurrence.
        run: number of last tokens that agree with those before ``position``, at most ``MAX_RUN``.
    """

    position: int
    run: int


class PromptLookup:
    """An index of one text's n-grams, which grows with the text.

    Args:
        before: tokens before the text that can also be copied, such as an encoder's prompt.
        text: the text so far.
        longest: length of the longest n-gram. Longer n-grams are tried first, and the latest occurrence is used.
    """

    def __init__(self, before: Sequence[int], text: Sequence[int], longest: int) -> None:
        self.longest, self.offset = longest, len(before)
        self.tokens: list[int] = []
        self.followers: dict[tuple[int, ...], int] = {}  # n-gram → index of the token after its latest occurrence
        for token in (*before, *text):
            self._append(token)

    def extend(self, text: Sequence[int]) -> list[tuple[int, bool]]:
        """Append the tokens by which ``text`` has grown.

        Returns:
            For each appended token with a match before it: the length of the match, and whether it predicted the token.
        """
        foretold = []
        for token in text[len(self.tokens) - self.offset :]:
            match = self.match()
            if match is not None:
                foretold.append((match.run, self.tokens[match.position] == token))
            self._append(token)
        return foretold

    def distance(self, match: Match) -> int:
        """Number of tokens from what followed the match to the end of the text."""
        return len(self.tokens) - match.position

    def match(self) -> Match | None:
        """The match of the text's last tokens; None if even the last token did not occur before."""
        for length in range(min(self.longest, len(self.tokens)), 0, -1):
            position = self.followers.get(tuple(self.tokens[-length:]))
            if position is not None:
                run = length
                while run < min(MAX_RUN, position) and self.tokens[position - 1 - run] == self.tokens[-1 - run]:
                    run += 1
                return Match(position, run)
        return None

    def copy(self, match: Match, length: int, stop_tokens: frozenset[int]) -> list[int]:
        """The ``length`` tokens that followed ``match``, up to the first stop token.

        At the end of the text the copy continues with its own tokens, so that a repetition is continued.
        """
        copied: list[int] = []
        while len(copied) < length and not (copied and copied[-1] in stop_tokens):
            place = match.position + len(copied)
            copied.append(self.tokens[place] if place < len(self.tokens) else copied[place - len(self.tokens)])
        return copied

    def _append(self, token: int) -> None:
        for length in range(1, min(self.longest, len(self.tokens)) + 1):
            self.followers[tuple(self.tokens[-length:])] = len(self.tokens)
        self.tokens.append(token)
