"""The index against a search by hand, and however the text and the draft after it go on."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.controllers.acceptance.ngram_index import MAX_NGRAM, NOTHING, NgramIndex, NgramMatch

tokens = st.integers(0, 3)
texts = st.lists(tokens, max_size=30)


def followers(text: list[int], length: int) -> list[int]:
    """What came after each earlier occurrence of the last ``length`` tokens."""
    end = text[len(text) - length :]
    return [text[i + length] for i in range(len(text) - length) if text[i : i + length] == end]


def by_hand(text: list[int], token: int) -> NgramMatch:
    lengths = [n for n in range(1, min(MAX_NGRAM, len(text)) + 1) if followers(text, n)]
    if not lengths:
        return NOTHING
    found = followers(text, max(lengths))
    agrees = max((n for n in lengths if token in followers(text, n)), default=0)
    return NgramMatch(agrees, max(lengths), found.count(token) / len(found), found[-1])


@settings(max_examples=200)
@given(text=texts, token=tokens)
def test_it_finds_what_a_search_finds(text: list[int], token: int) -> None:
    assert NgramIndex(text).match([token]) == by_hand(text, token)


@settings(max_examples=200)
@given(
    prompt=texts,
    rounds=st.lists(st.tuples(st.lists(tokens, max_size=6), st.integers(0, 6), tokens, st.booleans()), max_size=6),
)
def test_drafts_come_and_go(prompt: list[int], rounds: list[tuple[list[int], int, int, bool]]) -> None:
    """Round by round: a draft is looked up token by token, or not at all, then some of it is kept and a token added."""
    text = [*prompt]
    index = NgramIndex(text)
    for draft, accepted, bonus, asked in rounds:
        for k in range(1, len(draft) + 1) if asked else ():
            assert index.match(draft[:k]) == by_hand([*text, *draft[: k - 1]], draft[k - 1])
        text += [*draft[:accepted], bonus]
    assert index.match([0]) == by_hand(text, 0)
