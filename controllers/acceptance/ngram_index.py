"""N-gram matches: earlier occurrences of a text's last tokens, and the tokens that followed them.

Prompt lookup uses them as drafts. Here they are features: a target copies from its context more often than a small
draft does, so whether a drafted token continues a match helps to predict its acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_NGRAM = 4  # the longest n-gram
BITS = 32  # bits per token in the key of an n-gram
NONE: list[int] = []


class NgramMatch(NamedTuple):
    """Matches of the n-grams that end before a token.

    Attributes:
        agrees: length of the longest n-gram, up to ``MAX_NGRAM``, that occurred before and was followed by this token.
        matches: length of the longest n-gram that occurred before and was followed by any token.
        share: share of this token among the tokens that followed that n-gram; 0 without a match.
        copy: the token that followed its last occurrence; None without a match.
    """

    agrees: int
    matches: int
    share: float
    copy: int | None


NOTHING = NgramMatch(0, 0, 0.0, None)


def nothing() -> NgramMatch:
    """The match of a token without a text."""
    return NOTHING


class NgramIndex:
    """An index of a text's n-grams, built on first use and updated as the text grows.

    Drafted tokens are not indexed: most of them are looked up once, and half of them are rejected.

    Args:
        text: the text including the prompt; not copied, so that appended tokens are found.
    """

    def __init__(self, text: list[int]) -> None:
        self.text = text
        self.indexed = 0  # number of the text's tokens in the index
        self.following: dict[int, list[int]] = {}  # key of an n-gram → the tokens that followed it

    def match(self, drafted: Sequence[int]) -> NgramMatch:
        """The match of the last token of ``drafted``, after the current text and the other drafted tokens."""
        while self.indexed < len(self.text):
            self._add(self.indexed)
            self.indexed += 1
        token, end = drafted[-1], [*self.text[-MAX_NGRAM:], *drafted[:-1]]
        repeats = len(drafted) > 1 and end[-1] in end[-len(drafted) : -1]  # in the draft itself, which is not indexed
        found: list[int] = []
        agrees = matches = run = 0
        for length in range(1, min(MAX_NGRAM, len(end)) + 1):
            run = run << BITS | end[-length] + 1
            after = self.following.get(run, NONE)
            if repeats:
                after = [*after, *_repeated(end, len(drafted) - 1, length)]
            if not after:
                break  # no longer n-gram can match
            found, matches = after, length
            if token in after:
                agrees = length
        return NgramMatch(agrees, matches, found.count(token) / len(found), found[-1]) if found else NOTHING

    def _add(self, place: int) -> None:
        """Add the token at ``place`` as the continuation of the n-grams before it."""
        token, run = self.text[place], 0
        for before in range(place - 1, max(-1, place - 1 - MAX_NGRAM), -1):
            run = run << BITS | self.text[before] + 1
            after = self.following.get(run)
            if after is None:
                self.following[run] = [token]
            else:
                after.append(token)


def _repeated(end: list[int], drafted: int, length: int) -> list[int]:
    """Tokens that follow an occurrence of the last ``length`` tokens of ``end`` within its last ``drafted`` tokens."""
    return [
        end[place]
        for place in range(max(length, len(end) - drafted), len(end))
        if end[place - length : place] == end[-length:]
    ]
