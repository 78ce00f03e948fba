"""N-gram matches: earlier occurrences of a text's last tokens, and the tokens that followed them.

Prompt lookup uses these tokens as drafts (:meth:`NgramIndex.latest`). Acceptance predictors use the matches as features
(:meth:`NgramIndex.match`), because a target copies from its context more often than a small draft does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

MAX_NGRAM = 4  # the longest n-gram
BITS = 32  # bits per token in the key of an n-gram
NONE: list[int] = []


class NgramMatch(NamedTuple):
    """Matches of the n-grams that end before a token.

    Attributes:
        agrees: length of the longest n-gram at the end of the text that occurs earlier with this token after it, up to
            ``MAX_NGRAM``.
        matches: length of the longest n-gram at the end of the text that also occurs earlier, up to ``MAX_NGRAM``.
        share: share of this token among the tokens that followed the longest n-gram; 0 without a match.
        copy: the token that followed the n-gram's last occurrence; None without a match.
    """

    agrees: int
    matches: int
    share: float
    copy: int | None


NO_MATCH = NgramMatch(0, 0, 0.0, None)


def no_match() -> NgramMatch:
    """Return the match of a token without a text."""
    return NO_MATCH


class NgramIndex:
    """An index of a text's n-grams, built on first use and updated as the text grows.

    Drafted tokens are not indexed, because most of them are looked up once, and half of them are rejected.

    Args:
        text: the text including the prompt. The list is not copied, so that the index finds tokens appended to it.
        before: tokens before the text that :meth:`latest` also finds, such as an encoder's prompt.
        longest: length of the longest n-gram.

    Attributes:
        tokens: ``before`` and ``text``.
        indexed: number of tokens in the index.
        places: key of an n-gram → ascending indices of the tokens that followed it.
    """

    def __init__(self, text: list[int], before: Sequence[int] = (), longest: int = MAX_NGRAM) -> None:
        self.text, self.longest, self.start = text, longest, len(before)
        self.tokens = [*before, *text] if before else text
        self.indexed = 0
        self.places: dict[int, list[int]] = {}

    def update(self) -> None:
        """Add the tokens that were appended to the text."""
        if self.indexed == self.start + len(self.text):
            return
        if self.tokens is not self.text:
            self.tokens += self.text[len(self.tokens) - self.start :]
        tokens, places = self.tokens, self.places
        for index in range(self.indexed, len(tokens)):
            key = 0
            for token in tokens[max(0, index - self.longest) : index][::-1]:
                key = key << BITS | token + 1
                if key in places:
                    places[key].append(index)
                else:
                    places[key] = [index]
        self.indexed = len(tokens)

    def match(self, drafted: Sequence[int]) -> NgramMatch:
        """Return the match of the last token of ``drafted``, after the current text and the earlier drafted tokens."""
        self.update()
        token, end = drafted[-1], [*self.text[-MAX_NGRAM:], *drafted[:-1]]
        repeats = len(drafted) > 1 and end[-1] in end[-len(drafted) : -1]  # in the draft, which is not indexed
        # For n-grams of 1, 2, … tokens: places in the text, and following tokens in the draft.
        occurrences: list[tuple[list[int], list[int]]] = []
        key = 0
        for length in range(1, min(MAX_NGRAM, len(end)) + 1):
            key = key << BITS | end[-length] + 1
            places = self.places.get(key, NONE)
            if self.start:  # n-grams of the text alone
                places = places[bisect_left(places, self.start + length) :]
            repeated = _repeated(end, len(drafted) - 1, length) if repeats else NONE
            if not places and not repeated:
                break  # no longer n-gram can match
            occurrences.append((places, repeated))
        if not occurrences:
            return NO_MATCH
        places, repeated = occurrences[-1]
        after = [*map(self.tokens.__getitem__, places), *repeated]
        count, agrees = after.count(token), len(occurrences)
        if not count:
            agrees = self._longest_before(token, occurrences[:-1])
        return NgramMatch(agrees, len(occurrences), count / len(after), after[-1])

    def _longest_before(self, token: int, occurrences: Sequence[tuple[list[int], list[int]]]) -> int:
        """Return the length of the longest n-gram that ``token`` followed; ``occurrences`` is by length 1, 2, …"""
        for length in range(len(occurrences), 0, -1):
            places, repeated = occurrences[length - 1]
            if token in repeated or token in map(self.tokens.__getitem__, places):
                return length
        return 0

    def latest(self, end: int, longest: int) -> tuple[int, int] | None:
        """Find the latest earlier occurrence of the longest n-gram, up to ``longest`` tokens, that ends before ``end``.

        Returns:
            The index in ``tokens`` of the token that followed the occurrence, below ``end``, and the n-gram's length;
            None if the last token did not occur before.
        """
        self.update()
        latest, length, key = NONE, 0, 0
        for token in self.tokens[max(0, end - min(longest, self.longest)) : end][::-1]:
            key = key << BITS | token + 1
            places = self.places.get(key, NONE)
            if not places or places[0] >= end:
                break  # no longer n-gram occurred
            latest, length = places, length + 1
        if not length:
            return None
        return latest[-1] if latest[-1] < end else latest[bisect_left(latest, end) - 1], length


def _repeated(end: list[int], drafted: int, length: int) -> list[int]:
    """Return the last ``drafted`` tokens of ``end`` that follow an earlier occurrence of its last ``length`` tokens."""
    return [
        end[index]
        for index in range(max(length, len(end) - drafted), len(end))
        if end[index - length : index] == end[-length:]
    ]
