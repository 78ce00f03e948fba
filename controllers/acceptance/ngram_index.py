"""What a text says of its own continuation: its last tokens have stood in it before, and something followed them there.

Prompt lookup drafts by that. Here it is evidence: a target copies from its context more surely than a small draft
does, so whether a drafted token is the one that a copy would go on with tells much of what the target will say to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_NGRAM = 4  # the longest run of tokens that is looked for
BITS = 32  # of a token in the key of a run
NONE: list[int] = []


class NgramMatch(NamedTuple):
    """What a text holds of a token that may come next.

    Attributes:
        agrees: the longest run of last tokens, up to ``MAX_NGRAM``, that has stood before with this token after it.
        matches: the longest run of last tokens that has stood before with any token after it.
        share: of what followed that longest run, the share that is this token; 0 if nothing matches.
        copy: what followed it last; None if nothing matches.
    """

    agrees: int
    matches: int
    share: float
    copy: int | None


NOTHING = NgramMatch(0, 0, 0.0, None)


def nothing() -> NgramMatch:
    """What no text says of any token."""
    return NOTHING


class NgramIndex:
    """An index of a text's runs of tokens, made when it is first asked, and kept up as the text grows.

    Drafted tokens are not indexed: most of them are asked about once, and half of them never become text.

    Args:
        text: the text, prompt and all; the list itself, which grows as tokens are generated.
    """

    def __init__(self, text: list[int]) -> None:
        self.text = text
        self.indexed = 0  # how much of the text is in the index
        self.following: dict[int, list[int]] = {}  # by run of 1 to 4 tokens, what came after it

    def match(self, drafted: Sequence[int]) -> NgramMatch:
        """Of the last of ``drafted``, after the text as it is now and the drafted tokens before it."""
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
                break  # nor has a longer run stood before
            found, matches = after, length
            if token in after:
                agrees = length
        return NgramMatch(agrees, matches, found.count(token) / len(found), found[-1]) if found else NOTHING

    def _add(self, place: int) -> None:
        """The token at ``place`` follows the runs that end before it."""
        token, run = self.text[place], 0
        for before in range(place - 1, max(-1, place - 1 - MAX_NGRAM), -1):
            run = run << BITS | self.text[before] + 1
            after = self.following.get(run)
            if after is None:
                self.following[run] = [token]
            else:
                after.append(token)


def _repeated(end: list[int], drafted: int, length: int) -> list[int]:
    """What came after the last ``length`` tokens of ``end`` where they stood before the last ``drafted`` of them."""
    return [
        end[place]
        for place in range(max(length, len(end) - drafted), len(end))
        if end[place - length : place] == end[-length:]
    ]
