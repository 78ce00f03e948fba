"""What a text says of its own continuation: its last tokens have stood in it before, and something followed them there.

Prompt lookup drafts by that. Here it is evidence: a target copies from its context more surely than a small draft
does, so whether a drafted token is the one that a copy would go on with tells much of what the target will say to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_NGRAM = 4  # the longest run of tokens that is looked for


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

    Args:
        text: the text, prompt and all; the list itself, which grows by what is said.
    """

    def __init__(self, text: list[int]) -> None:
        self.text = text
        self.indexed = 0  # how much of the text is in the index
        self.tokens: list[int] = []  # what is in the index: so much of the text, and a draft after it
        self.following: dict[tuple[int, ...], list[int]] = {}

    def match(self, drafted: Sequence[int]) -> NgramMatch:
        """Of the last of ``drafted``, after the text as it is now and the drafted tokens before it."""
        self._follow(drafted[:-1])
        token = drafted[-1]
        found: list[int] = []
        agrees = matches = 0
        for length in range(1, min(MAX_NGRAM, len(self.tokens)) + 1):
            after = self.following.get(tuple(self.tokens[-length:]))
            if not after:
                break  # nor has a longer run stood before
            found, matches = after, length
            if token in after:
                agrees = length
        return NgramMatch(agrees, matches, found.count(token) / len(found), found[-1]) if found else NOTHING

    def _follow(self, drafted: Sequence[int]) -> None:
        """Bring the index to the text as it is now, and ``drafted`` after it."""
        wanted = [*self.text[self.indexed :], *drafted]
        there = self.tokens[self.indexed :]
        same = 0
        while same < len(wanted) and same < len(there) and wanted[same] == there[same]:
            same += 1
        for _ in there[same:]:
            self._drop()
        for token in wanted[same:]:
            self._add(token)
        self.indexed = len(self.text)

    def _add(self, token: int) -> None:
        for length in range(1, min(MAX_NGRAM, len(self.tokens)) + 1):
            self.following.setdefault(tuple(self.tokens[-length:]), []).append(token)
        self.tokens.append(token)

    def _drop(self) -> None:
        self.tokens.pop()
        for length in range(1, min(MAX_NGRAM, len(self.tokens)) + 1):
            self.following[tuple(self.tokens[-length:])].pop()
