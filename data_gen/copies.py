"""What n-gram drafts would have drafted along a text, for routers that choose between them and draft models."""

from __future__ import annotations

from collections.abc import Sequence

from ..infer.drafters import Ngram
from ..infer.drafters.prompt_lookup import PromptLookup


def copied(prompt: Sequence[int], text: Sequence[int]) -> list[bool]:
    """Whether each token of ``text`` is the copy that a match of the tokens before it gives.

    Where the text was drawn from the target, this is the draw that decides on the copy: token x_t has the distribution
    p, and is the copy y with probability p(y), the acceptance probability of y.
    """
    lookup, found = PromptLookup(prompt, [], Ngram().longest), []
    for place in range(1, len(text) + 1):
        found.append(any(right for _, right in lookup.extend(text[:place])))
    return found


def copies(prompt: Sequence[int], text: Sequence[int]) -> list[int]:
    """The tokens of ``text`` that are such copies, in their order: all that n-grams know of it."""
    return [token for token, right in zip(text, copied(prompt, text), strict=True) if right]
